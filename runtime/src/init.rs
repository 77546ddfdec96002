//! The first values of tensors.
//!
//! Element i of tensor `name` is a function of (seed, name, i), i counted in row-major order: the same whatever the threads, the layout, the order of
//! tensors, or the type (up to rounding). A uniform value u of (0, 1) goes through the inverse of the distribution function: of the normal
//! distribution by Wichura's algorithm AS 241 (PPND16, relative error 1e-16), of the truncated one by the same after squeezing u
//! into Φ(-2)..Φ(2).

use crate::exec::{Executor, element};
use crate::hash;
use forebay_plan::{DType, Init, Tensor, TensorKind};
use std::collections::HashMap;

/// Φ(-2): how much of a normal distribution lies below two standard deviations.
const BELOW_TWO: f64 = 0.022_750_131_948_179_21;
/// Elements that a thread is worth starting for.
const GRAIN: usize = 1 << 16;

/// Gives every tensor its first value.
pub fn initialise(executor: &mut Executor) {
    let (seed, threads) = (executor.seed(), executor.threads());
    executor.each_part(|tensor, part, bytes| {
        let key = hash::key(seed, &tensor.name);
        match tensor.init {
            Init::FromParam => {}
            init if part.is_prefix() => fill(bytes, tensor.dtype, threads, &|i| value(init, key, i as u64)),
            init => fill(bytes, tensor.dtype, threads, &|i| value(init, key, part.whole_index(i as u64))),
        }
    });
    refresh_copies(executor);
}

/// Makes the copies of parameters in the compute type again, after parameters were changed from outside.
pub fn refresh_copies(executor: &mut Executor) {
    let threads = executor.threads();
    let (copies, others): (Vec<&Tensor>, Vec<&Tensor>) =
        executor.tensors().into_iter().partition(|t| t.init == Init::FromParam);
    let params: HashMap<&str, &Tensor> =
        others.into_iter().filter(|t| t.kind == TensorKind::Param).map(|t| (t.name.as_str(), t)).collect();
    for copy in copies {
        let Some(param) = params.get(copy.name.as_str()) else { continue };
        // The whole master, from all ranks: a rank's copy may be of more than it has of the master.
        let master = executor.whole(param).into_owned();
        executor.each_part_of(copy, |tensor, part, bytes| {
            let of_master = |i| element(param.dtype, &master, part.whole_index(i as u64) as usize);
            fill(bytes, tensor.dtype, threads, &of_master);
        });
    }
}

/// The value of an element.
pub fn value(init: Init, key: u64, element: u64) -> f64 {
    let uniform = || hash::unit(hash::at(key, element));
    match init {
        Init::Constant(c) => c,
        Init::Normal(std) => std * inverse_normal(uniform()),
        Init::TruncatedNormal(std) => std * inverse_normal(BELOW_TWO + uniform() * (1.0 - 2.0 * BELOW_TWO)),
        Init::Uniform(lo, hi) => lo + (hi - lo) * uniform(),
        Init::FromParam => 0.0,
    }
}

/// Writes elements, on several threads where that pays.
fn fill(bytes: &mut [u8], dtype: DType, threads: usize, value: &(dyn Fn(usize) -> f64 + Sync)) {
    let elements = bytes.len() / dtype.bytes() as usize;
    let chunk = elements.div_ceil(threads.min(elements / GRAIN).max(1)).max(1);
    let chunks = bytes.chunks_mut(chunk * dtype.bytes() as usize).enumerate();
    if elements < 2 * GRAIN || threads == 1 {
        return chunks.for_each(|(i, part)| fill_part(part, dtype, i * chunk, value));
    }
    std::thread::scope(|scope| {
        chunks.for_each(|(i, part)| drop(scope.spawn(move || fill_part(part, dtype, i * chunk, value))));
    });
}

fn fill_part(bytes: &mut [u8], dtype: DType, first: usize, value: &(dyn Fn(usize) -> f64 + Sync)) {
    let size = dtype.bytes() as usize;
    for (i, place) in bytes.chunks_exact_mut(size).enumerate() {
        let value = value(first + i);
        match dtype {
            DType::F64 => place.copy_from_slice(&value.to_ne_bytes()),
            DType::F32 => place.copy_from_slice(&(value as f32).to_ne_bytes()),
            // Through f32, as a cast kernel rounds the f32 master.
            DType::Bf16 => place.copy_from_slice(&half::bf16::from_f32(value as f32).to_ne_bytes()),
            DType::I32 => place.copy_from_slice(&(value as i32).to_ne_bytes()),
            DType::Bool => place[0] = u8::from(value != 0.0),
        }
    }
}

/// The z with Φ(z) = p, for 0 < p < 1. Wichura (1988), "Algorithm AS 241: The percentage points of the normal distribution", Applied
/// Statistics 37, 477-484.
pub fn inverse_normal(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180625 - q * q;
        return q * ratio(&CENTRE, r);
    }
    let r = (-(if q < 0.0 { p } else { 1.0 - p }).ln()).sqrt();
    let z = if r <= 5.0 { ratio(&MIDDLE, r - 1.6) } else { ratio(&TAIL, r - 5.0) };
    if q < 0.0 { -z } else { z }
}

fn ratio(coefficients: &[[f64; 8]; 2], r: f64) -> f64 {
    let [top, bottom] = coefficients.map(|c| c.iter().rev().fold(0.0, |sum, c| sum * r + c));
    top / bottom
}

/// Coefficients of numerator and denominator, constant term first.
const CENTRE: [[f64; 8]; 2] = [
    [
        3.387_132_872_796_366_5e0,
        1.331_416_678_917_843_8e2,
        1.971_590_950_306_551_3e3,
        1.373_169_376_550_946e4,
        4.592_195_393_154_987e4,
        6.726_577_092_700_87e4,
        3.343_057_558_358_813e4,
        2.509_080_928_730_122_7e3,
    ],
    [
        1.0,
        4.231_333_070_160_091e1,
        6.871_870_074_920_579e2,
        5.394_196_021_424_751e3,
        2.121_379_430_158_659_7e4,
        3.930_789_580_009_271e4,
        2.872_908_573_572_194_3e4,
        5.226_495_278_852_854e3,
    ],
];
const MIDDLE: [[f64; 8]; 2] = [
    [
        1.423_437_110_749_683_5e0,
        4.630_337_846_156_546e0,
        5.769_497_221_460_691e0,
        3.647_848_324_763_204_5e0,
        1.270_458_252_452_368_4e0,
        2.417_807_251_774_506e-1,
        2.272_384_498_926_918_4e-2,
        7.745_450_142_783_414e-4,
    ],
    [
        1.0,
        2.053_191_626_637_759e0,
        1.676_384_830_183_803_8e0,
        6.897_673_349_851e-1,
        1.481_039_764_274_800_8e-1,
        1.519_866_656_361_645_7e-2,
        5.475_938_084_995_345e-4,
        1.050_750_071_644_416_9e-9,
    ],
];
const TAIL: [[f64; 8]; 2] = [
    [
        6.657_904_643_501_103e0,
        5.463_784_911_164_114e0,
        1.784_826_539_917_291_3e0,
        2.965_605_718_285_048_7e-1,
        2.653_218_952_657_612_4e-2,
        1.242_660_947_388_078_4e-3,
        2.711_555_568_743_487_6e-5,
        2.010_334_399_292_288_1e-7,
    ],
    [
        1.0,
        5.998_322_065_558_88e-1,
        1.369_298_809_227_358e-1,
        1.487_536_129_085_061_5e-2,
        7.868_691_311_456_133e-4,
        1.846_318_317_510_054_7e-5,
        1.421_511_758_316_446e-7,
        2.044_263_103_389_939_8e-15,
    ],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inverse_of_the_normal_distribution() {
        // The check values of the paper, and what any table says.
        for (p, z) in [
            (0.25, -0.674_489_750_196_081_7),
            (0.001, -3.090_232_306_167_813_5),
            (1e-20, -9.262_340_089_798_408),
            (0.5, 0.0),
            (0.975, 1.959_963_984_540_054),
            (BELOW_TWO, -2.0),
        ] {
            assert!((inverse_normal(p) - z).abs() <= 1e-14 * z.abs().max(1.0), "{p}: {} {z}", inverse_normal(p));
        }
        assert!(inverse_normal(0.5 / (1u64 << 53) as f64).is_finite());
    }

    #[test]
    fn moments() {
        let n = 200_000;
        let moments = |init| {
            let key = hash::key(1, "w");
            let values: Vec<f64> = (0..n).map(|i| value(init, key, i)).collect();
            let mean = values.iter().sum::<f64>() / n as f64;
            let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
            let most = values.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            (mean, variance.sqrt(), most)
        };
        let (mean, std, most) = moments(Init::Normal(0.5));
        assert!(mean.abs() < 0.005 && (std - 0.5).abs() < 0.005 && most > 1.5, "{mean} {std} {most}");
        let (mean, std, most) = moments(Init::TruncatedNormal(0.5));
        // The standard deviation of a normal distribution cut at ±2 is 0.8796.
        assert!(mean.abs() < 0.005 && (std - 0.4398).abs() < 0.005 && most <= 1.0, "{mean} {std} {most}");
        let (mean, std, most) = moments(Init::Uniform(-1.0, 3.0));
        assert!(
            (mean - 1.0).abs() < 0.01 && (std - 4.0 / 12f64.sqrt()).abs() < 0.01 && most < 3.0,
            "{mean} {std} {most}"
        );
    }

    #[test]
    fn threads_do_not_matter() {
        let elements = 5 * GRAIN + 17;
        let filled = |threads| {
            let mut bytes = vec![0u8; elements * 4];
            fill(&mut bytes, DType::F32, threads, &|i| value(Init::Normal(1.0), 42, i as u64));
            bytes
        };
        let one = filled(1);
        assert_eq!(one, filled(2));
        assert_eq!(one, filled(7));
        assert_eq!(element(DType::F32, &one, 123), f64::from(value(Init::Normal(1.0), 42, 123) as f32));
    }
}
