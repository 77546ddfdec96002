use super::*;

const LEVELS: [&str; 3] = ["avx512", "avx2", "portable"];

fn values(cpu: Cpu, distribution: Distribution, first: u64, n: usize) -> Vec<f32> {
    let mut out = vec![0.0; n];
    draw(cpu, distribution, hash::key(1, "w"), first, &mut out);
    out
}

/// Φ(z), by the series of Marsaglia (2004), "Evaluating the normal distribution"; for z below 0 what it takes from 1 loses digits, so that tails are
/// compared by Mills's ratio as a continued fraction.
fn tail(z: f64) -> f64 {
    let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if z > 3.0 {
        return density / (1..200).rev().fold(z, |below, k| z + f64::from(k) / below);
    }
    let (mut sum, mut term, mut k) = (0.0, z, 1.0);
    while f64::abs(term) > 1e-18 {
        sum += term;
        k += 2.0;
        term *= z * z / k;
    }
    0.5 - sum * density
}

#[test]
fn the_inverse_of_the_normal_distribution() {
    // Sizes of x from the first to the last, dense at both ends and between.
    let last = (1u32 << 30) - 1;
    let near = (0..30).flat_map(|shift| [(1 << shift) - 1, 1 << shift, last - (1 << shift), last + 1 - (1 << shift)]);
    for m in near.chain((0..last).step_by(104_729)) {
        for part in [1.0, WITHIN_TWO] {
            let z = f64::from(inverse_error(m, part)) * std::f64::consts::SQRT_2;
            let rest = f64::from(i32::MAX as u32 - 2 * m) / f64::from(1u32 << 31);
            let p = 0.5 * ((1.0 - f64::from(part)) + f64::from(part) * rest);
            // How far z is off, from how far its tail is: dp/dz is the density.
            let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let off = (tail(z) - p) / density;
            assert!(off.abs() <= 1e-6 * z, "m {m}: {z} is off by {off:e}");
            assert_eq!(inverse_error(m | 1 << 31, part), -inverse_error(m, part));
        }
    }
    assert!((6.2..6.3).contains(&(inverse_error(last, 1.0) * std::f32::consts::SQRT_2)));
    assert!(inverse_error(last, WITHIN_TWO) * std::f32::consts::SQRT_2 <= 2.0);
}

#[test]
fn moments() {
    let moments = |distribution| {
        let values = values(Cpu::detect(), distribution, 0, 200_000);
        let n = values.len() as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let central = |k| values.iter().map(|v| (f64::from(*v) - mean).powi(k)).sum::<f64>() / n;
        let most = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        (mean, central(2).sqrt(), central(4) / central(2).powi(2), most)
    };
    let (mean, std, kurtosis, most) = moments(Distribution::Normal(0.5));
    assert!(mean.abs() < 0.005 && (std - 0.5).abs() < 0.005 && most > 1.9, "{mean} {std} {most}");
    assert!((kurtosis - 3.0).abs() < 0.05, "{kurtosis}");
    let (mean, std, _, most) = moments(Distribution::TruncatedNormal(0.5));
    // The standard deviation of a normal distribution cut at ±2 is 0.8796.
    assert!(mean.abs() < 0.005 && (std - 0.4398).abs() < 0.005 && most <= 1.0, "{mean} {std} {most}");
    let (mean, std, _, most) = moments(Distribution::Uniform(-1.0, 3.0));
    assert!((mean - 1.0).abs() < 0.01 && (std - 4.0 / 12f64.sqrt()).abs() < 0.01 && most < 3.0, "{mean} {std} {most}");
}

#[test]
fn neither_the_level_nor_the_cut_matters() {
    let n = 3 * BLOCK + 17;
    let all = [Distribution::Uniform(-0.1, 0.2), Distribution::Normal(0.02), Distribution::TruncatedNormal(0.02)];
    for distribution in all {
        let whole = values(Cpu::detect(), distribution, 0, n);
        for cpu in LEVELS.map(|name| Cpu::named(name).expect("a level")) {
            assert_eq!(values(cpu, distribution, 0, n), whole, "{distribution:?}");
            for (first, len) in [(1, 5), (BLOCK - 1, BLOCK + 2), (n - 1, 1)] {
                assert_eq!(values(cpu, distribution, first as u64, len), whole[first..first + len], "{distribution:?}");
            }
        }
    }
}
