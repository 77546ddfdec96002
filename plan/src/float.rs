//! Floats in JSON: numbers where JSON has them, and the strings "inf", "-inf" and "nan" where it does not.

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;
use std::fmt;

/// Writes a float.
///
/// # Errors
/// When the serializer fails.
pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() {
        serializer.serialize_f64(*value)
    } else if value.is_nan() {
        serializer.serialize_str("nan")
    } else {
        serializer.serialize_str(if *value > 0.0 { "inf" } else { "-inf" })
    }
}

/// Reads a float.
///
/// # Errors
/// When it is neither a number nor one of the three strings.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    deserializer.deserialize_any(FloatVisitor)
}

struct FloatVisitor;

impl Visitor<'_> for FloatVisitor {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a number, \"inf\", \"-inf\" or \"nan\"")
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        match text {
            "inf" => Ok(f64::INFINITY),
            "-inf" => Ok(f64::NEG_INFINITY),
            "nan" => Ok(f64::NAN),
            _ => Err(E::custom(format!("`{}` is not a number", crate::file::excerpt(text)))),
        }
    }
}
