//! Memory for kernels, with guards around each buffer; random numbers; layouts.

#[cfg(test)]
use crate::kernels::cpu::Bf16;
use crate::kernels::math::round_to_bf16;
use crate::kernels::{
    Buf, Cpu, Jit, KernelCx, KernelError, Prepared, RandomKeyArgs, Scratch, prepare, run, scratch_bytes,
};
use crate::pool::Pool;
use forebay_plan::{Buffer, DType, Kernel};
use std::cell::RefCell;

#[cfg(all(test, unix))]
mod edges;

/// Bytes before and after each buffer that nobody may write.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;

/// Numbers that look random. Choices may come from bytes instead.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
    /// The last one is next.
    choices: Option<Vec<u8>>,
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed, choices: None }
    }

    /// Choices are those of the bytes, and the first there is to choose when they end: similar bytes make similar choices, and few bytes small things.
    pub fn choosing(bytes: &[u8]) -> Rng {
        Rng { state: 0, choices: Some(bytes.iter().rev().copied().collect()) }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number, not a choice.
    pub fn integer(&mut self, below: usize) -> usize {
        (self.next() % below.max(1) as u64) as usize
    }

    /// A choice.
    pub fn below(&mut self, n: usize) -> usize {
        let Some(bytes) = &mut self.choices else { return self.integer(n) };
        let mut byte = || usize::from(bytes.pop().unwrap_or(0));
        let number = if n <= 256 { byte() } else { byte() * 256 + byte() };
        number % n.max(1)
    }

    pub fn coin(&mut self) -> bool {
        self.below(2) == 1
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// In [-1, 1).
    pub fn float(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub fn floats(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.float()).collect()
    }

    pub fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        (1..n).rev().for_each(|i| order.swap(i, self.below(i + 1)));
        order
    }

    /// `groups + 1` offsets that rise from 0 to at most `bound`; some groups are empty.
    pub fn offsets(&mut self, groups: usize, bound: usize) -> Vec<f64> {
        let total = if self.coin() { bound } else { self.below(bound + 1) };
        let mut cuts: Vec<usize> = (0..groups.saturating_sub(1)).map(|_| self.below(total + 1)).collect();
        if self.below(3) == 0 {
            // All in one group.
            let at = if self.coin() { 0 } else { total };
            cuts.fill(at);
        }
        cuts.sort_unstable();
        let all = std::iter::once(0).chain(cuts).chain(std::iter::once(total));
        if groups == 0 { vec![0.0] } else { all.map(|o| o as f64).collect() }
    }
}

/// A value rounded to a type.
pub fn rounded(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => x,
        DType::F32 => f64::from(x as f32),
        DType::Bf16 => f64::from(round_to_bf16(x as f32)),
        DType::I32 => f64::from(x as i32),
        DType::I16 => f64::from(x as i32 as i16),
        DType::Bool => f64::from(u8::from(x != 0.0)),
    }
}

/// The levels that multiply pairs of bf16: those of the machine, by their own instruction or others, and plain Rust.
#[cfg(test)]
pub fn pairing_levels() -> [Cpu; 3] {
    ["avx512bf16", "avx2", "portable"].map(|l| Cpu::named(l).expect("a level").emulating(Bf16::Pairs))
}

/// The same for tiles.
#[cfg(test)]
pub fn tiling_levels() -> [Cpu; 3] {
    ["amx", "avx2", "portable"].map(|l| Cpu::named(l).expect("a level").emulating(Bf16::Tiles))
}

/// All of them.
#[cfg(test)]
pub fn bf16_levels() -> impl Iterator<Item = Cpu> {
    pairing_levels().into_iter().chain(tiling_levels())
}

/// The distance between neighbouring numbers near 1.
pub fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::Bf16 => 1.0 / 128.0,
        DType::I32 | DType::I16 | DType::Bool => 0.0,
    }
}

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// Buffers.
#[derive(Clone, Default)]
pub struct Memory {
    pub buffers: Vec<Buffer>,
    data: Vec<Vec<Line>>,
}

thread_local! {
    static POOLS: RefCell<Vec<Pool>> = RefCell::new((1..=3).map(|workers| Pool::new(workers).expect("the system has threads")).collect());
}

impl Memory {
    /// A buffer with these values, rounded to the type.
    pub fn add(&mut self, dtype: DType, values: &[f64]) -> u32 {
        let bytes = values.len() * dtype.bytes() as usize;
        let mut lines = vec![Line([GUARD_BYTE; 64]); bytes.div_ceil(64) + 2];
        for (i, &value) in values.iter().enumerate() {
            let at = GUARD + i * dtype.bytes() as usize;
            let all = bytes_of(&mut lines);
            match dtype {
                DType::F64 => all[at..at + 8].copy_from_slice(&value.to_ne_bytes()),
                DType::F32 => all[at..at + 4].copy_from_slice(&(value as f32).to_ne_bytes()),
                DType::I32 => all[at..at + 4].copy_from_slice(&(value as i32).to_ne_bytes()),
                DType::I16 => all[at..at + 2].copy_from_slice(&(value as i16).to_ne_bytes()),
                DType::Bool => all[at] = (value != 0.0) as u8,
                DType::Bf16 => {
                    let bits = (round_to_bf16(value as f32).to_bits() >> 16) as u16;
                    all[at..at + 2].copy_from_slice(&bits.to_ne_bytes());
                }
            }
        }
        self.data.push(lines);
        let slot = self.buffers.len() as u32;
        self.buffers.push(Buffer { name: format!("b{slot}"), dtype, elements: values.len() as u64, slot, offset: 0 });
        slot
    }

    /// What a buffer holds.
    pub fn get(&self, id: u32) -> Vec<f64> {
        let buffer = &self.buffers[id as usize];
        let mut lines = self.data[id as usize].clone();
        let all = bytes_of(&mut lines);
        (0..buffer.elements as usize)
            .map(|i| {
                let at = GUARD + i * buffer.dtype.bytes() as usize;
                match buffer.dtype {
                    DType::F64 => f64::from_ne_bytes(all[at..at + 8].try_into().unwrap()),
                    DType::F32 => f64::from(f32::from_ne_bytes(all[at..at + 4].try_into().unwrap())),
                    DType::I32 => f64::from(i32::from_ne_bytes(all[at..at + 4].try_into().unwrap())),
                    DType::I16 => f64::from(i16::from_ne_bytes(all[at..at + 2].try_into().unwrap())),
                    DType::Bool => f64::from(all[at]),
                    DType::Bf16 => {
                        let bits = u16::from_ne_bytes(all[at..at + 2].try_into().unwrap());
                        f64::from(f32::from_bits(u32::from(bits) << 16))
                    }
                }
            })
            .collect()
    }

    /// Prepares a kernel, which must be good, and runs it on 1 to 3 workers.
    pub fn run_on(&mut self, kernel: &Kernel, workers: usize, cpu: Cpu) -> Result<(), KernelError> {
        self.run_prepared(kernel, &self.prepared(kernel, cpu), workers)
    }

    /// Why a kernel is not taken, if it is not.
    pub fn refusal(&self, kernel: &Kernel) -> Option<String> {
        prepare(kernel, &self.buffers, Cpu::detect()).err().map(|e| e.to_string())
    }

    fn prepared(&self, kernel: &Kernel, cpu: Cpu) -> Prepared {
        prepare(kernel, &self.buffers, cpu).unwrap_or_else(|e| panic!("{e}: {kernel:?}"))
    }

    fn run_prepared(&mut self, kernel: &Kernel, prepared: &Prepared, workers: usize) -> Result<(), KernelError> {
        let place = |(buffer, data): (&Buffer, &mut Vec<Line>)| buf(buffer, bytes_of(data)[GUARD..].as_mut_ptr());
        let buffers: Vec<Buf> = self.buffers.iter().zip(&mut self.data).map(place).collect();
        let result = run_in(&buffers, prepared, workers);
        self.check_guards(kernel);
        result
    }

    /// Runs a kernel at every CPU level of this machine, with its regions compiled and not, and with 1, 2 and 3 workers; gives the memory after it, for the
    /// best level. Machine code and workers must not make a difference; levels neither when `same_bits`.
    pub fn run_everywhere(&self, kernel: &Kernel, same_bits: bool) -> Result<Memory, KernelError> {
        let engines: &[Jit] = if has_region(kernel) { &[Jit::Off, Jit::Auto, Jit::On] } else { &[Jit::Auto] };
        let mut best: Option<(Memory, Result<(), KernelError>)> = None;
        let is_there = |level: &&str| Cpu::named(level).is_some_and(|cpu| cpu.name() == *level);
        for level in ["amx", "avx512bf16", "avx512", "avx2", "portable"].into_iter().filter(is_there) {
            // Products of pairs and tiles have other bits than others, whatever is done with them; they are compared elsewhere.
            let alone = matches!(level, "amx" | "avx512bf16") && !matches!(kernel, Kernel::Region(_));
            if alone && !has_region(kernel) {
                continue;
            }
            let mut of_level: Option<(Memory, Result<(), KernelError>)> = None;
            let prepared: Vec<(Jit, Prepared)> = engines
                .iter()
                .map(|&jit| (jit, self.prepared(kernel, Cpu::named(level).expect("a level").with_jit(jit))))
                .collect();
            for ((jit, prepared), workers) in prepared.iter().flat_map(|of| (1..=3).map(move |workers| (of, workers))) {
                let mut memory = self.clone();
                let result = memory.run_prepared(kernel, prepared, workers);
                let how = || format!("{level}, {jit:?}, {workers} workers: {kernel:?}");
                for other in [&of_level, if same_bits && !alone { &best } else { &None }].into_iter().flatten() {
                    assert_eq!(other.1, result, "{}", how());
                    if result.is_ok() {
                        memory.assert_same(&other.0, &how);
                    }
                }
                of_level.get_or_insert((memory, result));
            }
            let of_level = of_level.expect("it ran");
            if !alone {
                best.get_or_insert(of_level);
            }
        }
        let (memory, result) = best.expect("it ran");
        result.map(|()| memory)
    }

    /// Runs a kernel that must succeed.
    pub fn done(&self, kernel: &Kernel) -> Memory {
        self.run_everywhere(kernel, true).unwrap_or_else(|e| panic!("{e}: {kernel:?}"))
    }

    fn check_guards(&mut self, kernel: &Kernel) {
        for (buffer, data) in self.buffers.iter().zip(&mut self.data) {
            let all = bytes_of(data);
            let end = GUARD + (buffer.elements * buffer.dtype.bytes()) as usize;
            let intact = all[..GUARD].iter().chain(&all[end..]).all(|&b| b == GUARD_BYTE);
            assert!(intact, "written beside {}: {kernel:?}", buffer.name);
        }
    }

    /// What a kernel leaves at one level, with one to three workers: the same bits.
    ///
    /// # Errors
    /// The kernel's.
    pub fn run_with_workers(&self, kernel: &Kernel, cpu: Cpu) -> Result<Memory, KernelError> {
        let prepared = self.prepared(kernel, cpu);
        let run = |workers: usize| {
            let mut memory = self.clone();
            memory.run_prepared(kernel, &prepared, workers).map(|()| memory)
        };
        let one = run(1)?;
        for workers in 2..=3 {
            one.assert_same(&run(workers)?, &|| format!("{cpu:?}, {workers} workers: {kernel:?}"));
        }
        Ok(one)
    }

    /// Panics where two memories differ.
    pub fn assert_same(&self, other: &Memory, how: &dyn Fn() -> String) {
        for (id, (a, b)) in self.data.iter().zip(&other.data).enumerate() {
            let same = a.iter().zip(b).all(|(a, b)| a.0 == b.0);
            if !same {
                let (a, b) = (self.get(id as u32), other.get(id as u32));
                let nan = |x: f64, y: f64| x.is_nan() && y.is_nan();
                let at = (0..a.len()).find(|&i| a[i].to_bits() != b[i].to_bits() && !nan(a[i], b[i]));
                if let Some(i) = at {
                    panic!("buffer {id}, element {i}: {:e} and {:e}: {}", a[i], b[i], how());
                }
            }
        }
    }
}

/// A buffer at a place.
fn buf(buffer: &Buffer, ptr: *mut u8) -> Buf {
    Buf { ptr, dtype: buffer.dtype, elements: buffer.elements as usize }
}

/// Runs a kernel on buffers, which hold what it was prepared for.
fn run_in(buffers: &[Buf], prepared: &Prepared, workers: usize) -> Result<(), KernelError> {
    POOLS.with_borrow(|pools| {
        let pool = &pools[workers - 1];
        // In a step it holds what earlier kernels have left.
        let mut scratch = Scratch::new(scratch_bytes(prepared), workers);
        scratch.spoil();
        let key = RandomKeyArgs { seed: -7, step: 3, layer: 2, micro_batch: 5 };
        let cx = KernelCx { pool, scratch: &scratch, buffers, key, coordinates: &[] };
        // SAFETY: tests make views that lie within their buffers.
        unsafe { run(prepared, &cx) }
    })
}

/// Is there something that may be compiled to machine code?
fn has_region(kernel: &Kernel) -> bool {
    match kernel {
        Kernel::Region(_) => true,
        Kernel::Matmul(product) => product.epilogue.is_some(),
        _ => false,
    }
}

fn bytes_of(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: lines are plain bytes without padding.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), std::mem::size_of_val(lines)) }
}

/// Strides for dimensions that lie in memory in some order, with gaps at times; and the number of elements they take.
pub fn layout(rng: &mut Rng, sizes: &[usize]) -> (Vec<u64>, usize) {
    let order = rng.shuffled(sizes.len());
    ordered_layout(rng, sizes, &order)
}

/// The same with the order given, outermost first.
pub fn ordered_layout(rng: &mut Rng, sizes: &[usize], order: &[usize]) -> (Vec<u64>, usize) {
    let mut strides = vec![0; sizes.len()];
    let mut stride = if rng.below(8) == 0 { 2 } else { 1 };
    for &d in order.iter().rev() {
        strides[d] = stride as u64;
        stride *= sizes[d].max(1);
        if rng.below(6) == 0 {
            stride += rng.below(5);
        }
    }
    (strides, stride)
}

/// All indices of a space, outermost first.
pub fn indices(sizes: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let sizes = sizes.to_vec();
    let count: usize = sizes.iter().product();
    (0..count).map(move |mut number| {
        let mut index = vec![0; sizes.len()];
        for d in (0..sizes.len()).rev() {
            index[d] = number % sizes[d];
            number /= sizes[d];
        }
        index
    })
}

/// Where an index is.
pub fn offset(index: &[usize], strides: &[u64]) -> usize {
    index.iter().zip(strides).map(|(&i, &s)| i * s as usize).sum()
}

/// Are two numbers equal within a tolerance (NaN and the infinities exactly)?
pub fn close(a: f64, b: f64, tolerance: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance
}
