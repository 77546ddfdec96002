//! Products of f32 matrices by this crate's kernel and by libraries, by turns, in GFLOP/s (medians), at the shapes of the bench models. Operands stay in a cache where they
//! have room. The results are compared first. One argument: how many threads (2).

#[path = "../../memory/mod.rs"]
#[expect(dead_code, reason = "other benchmarks have views, and numbers that are bf16 as well")]
mod memory;

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use forebay_plan::{BatchDim, DType, Groups, Kernel, MatDim, Matmul, RaggedDim};
use forebay_runtime::kernels::Cpu;
use memory::Memory;
use std::time::{Duration, Instant};

/// Measurements of each, of at least this long.
const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(20);

/// Products of one shape, one behind another in memory: experts' have their own rows.
struct Shape {
    name: &'static str,
    /// Rows of each product.
    rows: &'static [usize],
    /// Terms of an element.
    depth: usize,
    columns: usize,
    /// Is A, is B transposed in memory?
    turned: [bool; 2],
}

const fn dense(name: &'static str, rows: &'static [usize], depth: usize, columns: usize, turned: [bool; 2]) -> Shape {
    Shape { name, rows, depth, columns, turned }
}

const NN: [bool; 2] = [false, false];
const NT: [bool; 2] = [false, true];
const TN: [bool; 2] = [true, false];
const SHAPES: [Shape; 14] = [
    dense("2048×256 · 256×512", &[2048], 256, 512, NN),
    dense("2048×512 · (256×512)ᵀ", &[2048], 512, 256, NT),
    dense("(2048×256)ᵀ · 2048×512", &[256], 2048, 512, TN),
    dense("2048×768 · 768×3072", &[2048], 768, 3072, NN),
    dense("2048×1024 · (768×1024)ᵀ", &[2048], 1024, 768, NT),
    dense("(2048×768)ᵀ · 2048×1024", &[768], 2048, 1024, TN),
    dense("256×768 · 768×1024", &[256], 768, 1024, NN),
    dense("1×256 · 256×1024", &[1], 256, 1024, NN),
    dense("4×256 · 256×1024", &[4], 256, 1024, NN),
    dense("16×256 · 256×1024", &[16], 256, 1024, NN),
    dense("64×256 · 256×1024", &[64], 256, 1024, NN),
    dense("8 experts of 400 to 700 rows, 256×512", &[700, 400, 550, 500, 450, 590, 510, 396], 256, 512, NN),
    dense("the same · (256×512)ᵀ", &[700, 400, 550, 500, 450, 590, 510, 396], 512, 256, NT),
    dense("8 experts of 1 to 64 rows, 256×512", &[1, 2, 4, 8, 16, 24, 32, 64], 256, 512, NN),
];

impl Shape {
    fn total(&self) -> usize {
        self.rows.iter().sum()
    }

    /// Steps from one row, and from one column, to the next: of A, B and C.
    fn strides(&self) -> [(usize, usize); 3] {
        let of = |turned, rows, columns| if turned { (1, rows) } else { (columns, 1) };
        [of(self.turned[0], self.total(), self.depth), of(self.turned[1], self.depth, self.columns), (self.columns, 1)]
    }

    /// Where each product's A, B and C begin, and its rows.
    fn products(&self) -> Vec<([usize; 3], usize)> {
        let mut first = 0;
        let product = |(i, &rows): (usize, &usize)| {
            let at = [first * self.strides()[0].0, i * self.depth * self.columns, first * self.columns];
            first += rows;
            (at, rows)
        };
        self.rows.iter().enumerate().map(product).collect()
    }

    fn operations(&self) -> f64 {
        2.0 * (self.total() * self.depth * self.columns) as f64
    }

    /// The kernel, and its buffers A, B and C.
    fn kernel(&self, memory: &mut Memory) -> Kernel {
        let [a, b, c] = self.strides().map(|(row, column)| (row as u64, column as u64));
        let [total, depth, columns] = [self.total(), self.depth, self.columns].map(|n| n as u64);
        let [buffer_a, buffer_b, buffer_c] = [total * depth, self.rows.len() as u64 * depth * columns, total * columns]
            .map(|n| memory.filled(DType::F32, n as usize, number));
        let starts: Vec<u32> = self.products().iter().map(|(at, _)| (at[2] / self.columns) as u32).collect();
        let group = |memory: &mut Memory| Groups {
            offsets: memory.filled(DType::I32, starts.len() + 1, |i| *starts.get(i).unwrap_or(&(total as u32))),
            count: starts.len() as u64,
            even: total,
            ragged: RaggedDim::M,
            strides: [0, depth * columns, 0],
        };
        Kernel::Matmul(Matmul {
            dtype: DType::F32,
            a: buffer_a,
            b: buffer_b,
            c: buffer_c,
            offsets: [0; 3],
            batch: if starts.len() > 1 { vec![] } else { vec![BatchDim(1, 0, 0, 0)] },
            m: MatDim(total, a.0, c.0),
            n: MatDim(columns, b.1, c.1),
            k: MatDim(depth, a.1, b.0),
            k_outer: vec![],
            groups: (starts.len() > 1).then(|| group(memory)),
            accumulate: false,
            epilogue: None,
        })
    }
}

/// The bits of a number from -1 to 1.
fn number(i: usize) -> u32 {
    let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed >> 40) as f32 / (1 << 23) as f32 - 1.0).to_bits()
}

/// A product by a library: `(where A, B and C begin, rows, columns, terms, strides of A, B and C, threads)`.
type Product = fn([*mut f32; 3], [usize; 3], [(usize, usize); 3], usize);

fn by_gemm([a, b, c]: [*mut f32; 3], [m, n, k]: [usize; 3], strides: [(usize, usize); 3], threads: usize) {
    let [a_by, b_by, c_by] = strides.map(|(row, column)| (row as isize, column as isize));
    let threads = if threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
    // SAFETY: the matrices lie within their buffers.
    unsafe {
        gemm::gemm(
            m, n, k, c, c_by.1, c_by.0, false, a, a_by.1, a_by.0, b, b_by.1, b_by.0, 0.0, 1.0, false, false, false,
            threads,
        );
    }
}

fn by_faer([a, b, c]: [*mut f32; 3], [m, n, k]: [usize; 3], strides: [(usize, usize); 3], threads: usize) {
    let [a_by, b_by, c_by] = strides.map(|(row, column)| (row as isize, column as isize));
    let par = if threads > 1 { Par::rayon(threads) } else { Par::Seq };
    // SAFETY: the matrices lie within their buffers, and C apart from the others.
    let (a, b, c) = unsafe {
        (
            MatRef::from_raw_parts(a.cast_const(), m, k, a_by.0, a_by.1),
            MatRef::from_raw_parts(b.cast_const(), k, n, b_by.0, b_by.1),
            MatMut::from_raw_parts_mut(c, m, n, c_by.0, c_by.1),
        )
    };
    matmul(c, Accum::Replace, a, b, 1.0, par);
}

fn by_matrixmultiply([a, b, c]: [*mut f32; 3], [m, n, k]: [usize; 3], strides: [(usize, usize); 3], _: usize) {
    let [a_by, b_by, c_by] = strides.map(|(row, column)| (row as isize, column as isize));
    // SAFETY: the matrices lie within their buffers.
    unsafe {
        matrixmultiply::sgemm(m, k, n, 1.0, a, a_by.0, a_by.1, b, b_by.0, b_by.1, 0.0, c, c_by.0, c_by.1);
    }
}

const LIBRARIES: [(&str, Product); 3] = [("gemm", by_gemm), ("faer", by_faer), ("matrixmultiply", by_matrixmultiply)];

/// GFLOP/s of one measurement.
fn speed(operations: f64, run: &dyn Fn()) -> f64 {
    let (start, mut runs) = (Instant::now(), 0.0);
    while start.elapsed() < ROUND {
        run();
        runs += 1.0;
    }
    operations * runs / start.elapsed().as_secs_f64() / 1e9
}

fn main() {
    let threads: usize = std::env::args().nth(1).map_or(2, |n| n.parse().expect("how many threads"));
    // SAFETY: no other thread has been started.
    unsafe { std::env::set_var("MATMUL_NUM_THREADS", threads.to_string()) };
    println!("{threads} threads, {}", Cpu::detect().name());
    println!("{:40} {:>8} {}", "", "ours", LIBRARIES.map(|(name, _)| format!("{name:>15}")).concat());
    for shape in &SHAPES {
        let mut memory = Memory::default();
        let kernel = shape.kernel(&mut memory);
        let Kernel::Matmul(matmul) = &kernel else { unreachable!("it is a product") };
        let buffers = [matmul.a, matmul.b, matmul.c].map(|id| memory.start::<f32>(id));
        let [total, columns] = [shape.total(), shape.columns];
        memory.with(Cpu::detect(), std::slice::from_ref(&kernel), threads, |ours| {
            let others = LIBRARIES.map(|(_, product)| {
                move || {
                    for (at, rows) in shape.products() {
                        // SAFETY: within the buffers, which live as long as `memory`.
                        let operands = [0, 1, 2].map(|i| unsafe { buffers[i].add(at[i]) });
                        product(operands, [rows, columns, shape.depth], shape.strides(), threads);
                    }
                }
            });
            // SAFETY: nothing writes it while it is read.
            let result = || unsafe { std::slice::from_raw_parts(buffers[2], total * columns) }.to_vec();
            ours();
            let want = result();
            for (run, (name, _)) in others.iter().zip(LIBRARIES) {
                run();
                let apart = want.iter().zip(result()).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
                let size = want.iter().fold(0.0_f32, |most, a| most.max(a.abs()));
                assert!(apart <= 1e-4 * size, "{}: {name} is {apart} apart of {size}", shape.name);
            }
            let mut speeds = [const { vec![] }; 1 + LIBRARIES.len()];
            for _ in 0..ROUNDS {
                speeds[0].push(speed(shape.operations(), ours));
                for (run, speeds) in others.iter().zip(&mut speeds[1..]) {
                    speeds.push(speed(shape.operations(), run));
                }
            }
            let medians = speeds.map(|mut of| {
                of.sort_by(f64::total_cmp);
                of[ROUNDS / 2]
            });
            println!(
                "{:40} {:8.0} {}",
                shape.name,
                medians[0],
                medians[1..].iter().map(|m| format!("{m:15.0}")).collect::<String>()
            );
        });
    }
}
