//! Small products against sums that are written out, and what only the instruction does.

#[cfg(target_arch = "x86_64")]
use crate::kernels::Cpu;
use crate::kernels::matmul::product::{Product, Rows};
use crate::kernels::matmul::tile::Simd;
use crate::kernels::testing::harness::Rng;

/// Words of random pairs of bf16 without denormal numbers.
fn words(rng: &mut Rng, n: usize) -> Vec<u32> {
    let mut value = || u32::from(half::bf16::from_f64(rng.float()).to_bits());
    (0..n).map(|_| value() | value() << 16).collect()
}

/// One element as the manual states it: sums of up to sixteen pairs, each a chain of first and a chain of second values.
fn element(pairs: &[(u32, u32)], from: f32) -> f32 {
    let value = |word: u32, half: u32| f32::from_bits(word >> (16 * half) << 16);
    pairs.chunks(16).fold(from, |sum, step| {
        let chain = |half| step.iter().fold(0.0f32, |c, &(x, y)| value(x, half).mul_add(value(y, half), c));
        sum + (chain(0) + chain(1))
    })
}

/// Small products of all sizes around a register's and a copy's, A in rows, in columns and apart, C made or added to.
fn products<S: Simd<T = f32>>() {
    let mut rng = Rng::new(11);
    for round in 0..300 {
        let sizes = [1, 3, 15, 16, 17, 24, 31, 32, 33, 47, 48, 64];
        let (rows, columns) = (rng.pick(&sizes), rng.pick(&sizes));
        let depth = rng.pick(&[1, 8, 15, 16, 17, 24, 32, 40, 64, 127, 128, 129, 144, 260]);
        let (a_row, a_step) = match round % 3 {
            0 => (depth + rng.below(3), 1),
            1 => (1, rows + rng.below(3)),
            _ => (2 * depth, 2),
        };
        let (b_row, c_row) = (columns + rng.below(3), columns + rng.below(3));
        let a = words(&mut rng, (rows - 1) * a_row + (depth - 1) * a_step + 1);
        let b = words(&mut rng, (depth - 1) * b_row + columns);
        let before: Vec<f32> = (0..(rows - 1) * c_row + columns).map(|_| rng.float() as f32).collect();
        let (mut c, add) = (before.clone(), rng.coin());
        let product = Product {
            rows,
            columns,
            depth,
            a: a.as_ptr().cast(),
            a_row,
            a_step,
            b: Rows { at: b.as_ptr().cast::<f32>(), row: b_row },
            c: c.as_mut_ptr(),
            c_row,
            add,
        };
        // SAFETY: whoever calls this has the flavour's features; the arrays end with the last element.
        unsafe {
            S::begin();
            product.run::<S>();
            S::end();
        }
        for (at, (&have, &before)) in c.iter().zip(&before).enumerate() {
            let (row, column) = (at / c_row, at % c_row);
            let pair = |word: usize| (a[row * a_row + word * a_step], b[word * b_row + column]);
            let pairs = || (0..depth).map(pair).collect::<Vec<_>>();
            let from = if add { before } else { 0.0 };
            let want = if column < columns { element(&pairs(), from) } else { before };
            assert_eq!(have, want, "{rows} × {columns} of {depth} words, {a_row} {a_step}, row {row}, column {column}");
        }
    }
}

#[test]
fn small_products() {
    products::<super::Portable>();
    #[cfg(target_arch = "x86_64")]
    {
        if Cpu::named("avx2").is_some_and(|cpu| cpu.name() == "avx2") {
            products::<super::Avx2>();
        }
        if Cpu::named("amx").is_some_and(|cpu| cpu.name() == "amx") {
            products::<super::Hardware>();
        }
    }
}

/// What the emulation does not do: the instruction takes denormal numbers for zeros.
#[cfg(target_arch = "x86_64")]
#[test]
fn denormal_numbers_are_zeros() {
    if Cpu::named("amx").is_none_or(|cpu| cpu.name() != "amx") {
        return;
    }
    let denormal = u32::from(half::bf16::from_bits(0x0040).to_bits());
    let large = u32::from(half::bf16::from_f32(1e38).to_bits());
    let mut c = [1.0f32];
    let product = |a: &u32, b: &u32, c: &mut [f32; 1]| {
        let (a, b, c) = (std::ptr::from_ref(a).cast(), std::ptr::from_ref(b).cast(), c.as_mut_ptr());
        let b = Rows { at: b, row: 1 };
        let product = Product { rows: 1, columns: 1, depth: 1, a, a_row: 1, a_step: 1, b, c, c_row: 1, add: false };
        // SAFETY: the level is there, and so is an element of each.
        unsafe {
            super::Hardware::begin();
            product.run::<super::Hardware>();
            super::Hardware::end();
        }
    };
    product(&denormal, &large, &mut c);
    assert_eq!(c[0], 0.0);
    product(&large, &u32::from(half::bf16::from_f32(0.5).to_bits()), &mut c);
    assert_eq!(c[0], half::bf16::from_f32(1e38).to_f32() * 0.5);
}
