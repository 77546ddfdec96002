//! Accuracy over the whole range, against f64.

use super::*;

/// How many units in the last place of f32 a result is off.
fn ulps(have: f32, want: f64) -> f64 {
    if want.is_nan() || have.is_nan() {
        return if want.is_nan() && have.is_nan() { 0.0 } else { f64::INFINITY };
    }
    let nearest = want as f32;
    if nearest.is_infinite() || have.is_infinite() {
        return if nearest == have { 0.0 } else { f64::INFINITY };
    }
    let exponent = want.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor() as i32;
    (f64::from(have) - want).abs() / 2f64.powi(exponent - 23)
}

/// The worst error over floats of all sizes and signs, and some special ones.
fn worst(f: fn(f32) -> f32, exact: fn(f64) -> f64, range: impl Fn(f32) -> bool) -> (f64, f32) {
    // An odd step visits all exponents evenly and many mantissas.
    let sample = (0..=u32::MAX / 2039).map(|i| f32::from_bits(i.wrapping_mul(2039)));
    let special =
        [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, 1e-45];
    let near = (-2000..2000).flat_map(|i| [1.0 + i as f32 * 1e-6, i as f32 * 0.05, i as f32 * 1e-4]);
    let mut worst = (0.0, 0.0);
    for x in sample.chain(special).chain(near).filter(|&x| range(x) || x.is_nan()) {
        let error = ulps(f(x), exact(f64::from(x)));
        if error > worst.0 {
            worst = (error, x);
        }
    }
    worst
}

macro_rules! accurate {
    ($name:ident, $f:expr, $exact:expr, $range:expr, $limit:expr) => {
        #[test]
        fn $name() {
            let (error, x) = worst($f, $exact, $range);
            assert!(error <= $limit, "{error} ulp at {x:e}: {:e}, not {:e}", $f(x), $exact(f64::from(x)));
        }
    };
}

accurate!(exp_is_accurate, exp, f64::exp, |_| true, 1.0);
accurate!(log_is_accurate, log, f64::ln, |_| true, 1.0);
accurate!(rsqrt_is_accurate, |x: f32| 1.0 / x.sqrt(), |x: f64| 1.0 / x.sqrt(), |_| true, 1.5);
accurate!(tanh_is_accurate, tanh, f64::tanh, |_| true, 1.8);
accurate!(sin_is_accurate, sin_any, f64::sin, |_| true, 2.7);
accurate!(cos_is_accurate, cos_any, f64::cos, |_| true, 2.7);
accurate!(small_sines_are_accurate, sin, f64::sin, |x: f32| x.abs() <= 65_536.0, 2.0);
accurate!(small_cosines_are_accurate, cos, f64::cos, |x: f32| x.abs() <= 65_536.0, 2.0);

/// Near zeros of the sine, where nearly all of the argument goes, and near its ends, where rounding must not pass them.
#[test]
fn sines_near_zeros_and_ends() {
    for turns in (0..700_000).step_by(7).chain(0..100) {
        let middle = (f64::from(turns) * std::f64::consts::FRAC_PI_2) as f32;
        for x in [-2, -1, 0, 1, 2].map(|step| f32::from_bits((middle.to_bits() as i32 + step).max(0) as u32)) {
            for (have, want) in [(sin(x), f64::from(x).sin()), (cos(x), f64::from(x).cos())] {
                assert!(have.abs() <= 1.0 && ulps(have, want) < 2.7, "{x:e}: {have:e}, not {want:e}");
            }
        }
    }
}

#[test]
fn signs_of_zeros_and_ends() {
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(88.722_84).is_finite(), (88.722_84f64.exp() as f32).is_finite());
    assert!(exp(-103.0) > 0.0 && exp(-104.0) == 0.0);
    assert_eq!(log(1.0), 0.0);
    assert_eq!(log(0.0), f32::NEG_INFINITY);
    assert_eq!(log(-0.0), f32::NEG_INFINITY);
    assert!(log(-1.0).is_nan() && log(f32::NEG_INFINITY).is_nan());
    assert_eq!(log(1e-45), (f64::from(1e-45f32)).ln() as f32);
    assert_eq!(tanh(-0.0).to_bits(), (-0.0f32).to_bits());
    assert_eq!((tanh(30.0), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
    assert_eq!(sin(-0.0), 0.0);
    assert_eq!(cos(0.0), 1.0);
}

#[test]
fn bf16_rounds_to_nearest_even() {
    for bits in (0..=u32::MAX / 509).map(|i| i.wrapping_mul(509)) {
        let x = f32::from_bits(bits);
        let (have, want) = (round_to_bf16(x), half::bf16::from_f32(x).to_f32());
        assert!(have.to_bits() == want.to_bits() || (have.is_nan() && want.is_nan()), "{x:e}");
    }
    for bits in 0..=u16::MAX {
        let x = f32::from_bits(u32::from(bits) << 16);
        assert!(x.is_nan() || round_to_bf16(x).to_bits() == x.to_bits());
    }
}

#[test]
fn minimum_and_maximum() {
    assert!(max(f32::NAN, 1.0).is_nan() && max(1.0, f32::NAN).is_nan());
    assert!(min(f32::NAN, 1.0).is_nan() && min(1.0, f32::NAN).is_nan());
    assert_eq!((max(1, 2), min(1, 2)), (2, 1));
}

#[test]
fn whole_numbers_divide_downwards() {
    for (a, b, q, r) in [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, -3, -2, 0), (5, 0, 0, 0)] {
        assert_eq!((floor_div(a, b), floor_rem(a, b)), (q, r), "{a} / {b}");
    }
    assert_eq!((floor_div(i32::MIN, -1), floor_rem(i32::MIN, -1)), (i32::MIN, 0));
    assert_eq!((remainder(-1.0, 3.0), remainder(1.0, -3.0), remainder(4.5, 2.0)), (2.0, -2.0, 0.5));
}
