//! Memory budgets on the command line: how much there is, what values cost, and what to say when nothing fits.

mod advice;
pub mod report;
pub mod svg;

use crate::failure::Failure;
use crate::model::ModelFile;
use crate::output::{seconds, size};
use crate::progress::Spinner;
use crate::say::say;
use forebay_compiler::memory::place::Place;
use forebay_compiler::memory::{Aim, Price};
use forebay_compiler::pipeline::{CompileError, CompileOptions, Compiled};

/// A size of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// So many bytes.
    Bytes(u64),
    /// What the cluster file says that programs may use of a device.
    Device,
}

impl Budget {
    /// In bytes, on a device that has `device` bytes, where that is known.
    pub fn bytes(self, device: Option<f64>) -> Result<u64, Failure> {
        match (self, device) {
            (Budget::Bytes(bytes), _) => Ok(bytes),
            (Budget::Device, Some(bytes)) => Ok(bytes as u64),
            (Budget::Device, None) => Err(Failure::Usage(
                "--memory-budget device: there is no cluster here; give a size such as 58GiB".into(),
            )),
        }
    }
}

/// What a device may use, for people.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes of the device that programs may use.
    pub device: f64,
    /// Bytes of the budget, where there is one.
    pub budget: Option<u64>,
}

impl Room {
    /// Bytes that may be used.
    pub fn bytes(self) -> f64 {
        self.budget.map_or(self.device, |budget| budget as f64)
    }

    /// Do so many bytes fit, and into what?
    pub fn judged(self, peak: f64) -> String {
        let fits = if peak <= self.bytes() { "it fits" } else { "it does not fit" };
        let device = format!("programs may use {} of a device", size(self.device));
        match self.budget {
            Some(budget) => format!("{fits}: the budget is {}; {device}", size(budget as f64)),
            None => format!("{fits}: {device}"),
        }
    }
}

/// Units of sizes; those of 1000 and those of 1024.
const UNITS: [(&str, f64); 10] = [
    ("KiB", 1024.0),
    ("MiB", 1048576.0),
    ("GiB", 1073741824.0),
    ("TiB", 1099511627776.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("B", 1.0),
];

/// Sizes below this have a unit: a number alone is bytes, and nobody means so few.
const BARE: f64 = 1e6;

/// Sizes are below this: no device has so much, and numbers of bytes stay far from the end of their type.
const MOST_TB: f64 = 1e6;

/// Reads `58GiB`, `64 GB`, `64000000000` (bytes) or `device`.
pub fn budget(text: &str) -> Result<Budget, String> {
    if text == "device" {
        return Ok(Budget::Device);
    }
    let unit = UNITS.iter().find_map(|(name, factor)| text.strip_suffix(name).map(|number| (number, *factor)));
    let (number, factor) = unit.unwrap_or((text, 1.0));
    if let (None, Ok(n)) = (unit, number.trim().parse::<f64>())
        && n > 0.0
        && n < BARE
    {
        return Err(format!("`{text}` would be so many bytes; is it {text}GiB? (in bytes: {text}B)"));
    }
    match number.trim().parse::<f64>().map(|n| n * factor) {
        Ok(bytes) if (0.0..1.0).contains(&bytes) => Err(format!("`{text}` is zero bytes")),
        Ok(bytes) if bytes >= MOST_TB * 1e12 => Err(format!("`{text}` is too large: a size is below {MOST_TB}TB")),
        Ok(bytes) if bytes > 0.0 => Ok(Budget::Bytes(bytes as u64)),
        _ => Err("it is a size such as 58GiB, 64GB or 500MiB, or `device`: all that programs may use".into()),
    }
}

/// Where shares of experts are multiplied in, if that was to be found, and why.
fn told_places(compiled: &Compiled, budget: Option<u64>) -> String {
    let told = |place: &Place| match place.seconds {
        Some(time) => format!("{} in {}", seconds(time), size(place.bytes as f64)),
        None => format!("no plan: a stage needs {}", size(place.bytes as f64)),
    };
    let (best, others): (Vec<&Place>, Vec<&Place>) =
        compiled.places.iter().partition(|place| place.shares == compiled.strategy.shares);
    let within = budget.map_or("with everything kept".into(), |budget| format!("within {}", size(budget as f64)));
    let mut text = format!("shares={}: {within} a step takes", compiled.strategy.shares);
    best.iter().for_each(|place| text += &format!(" {}", told(place)));
    others.iter().for_each(|place| text += &format!(", with shares={} {}", place.shares, told(place)));
    if others.is_empty() {
        text += "; shares cannot be multiplied in before the down projection";
    }
    text
}

/// Compiles a model within a budget; without one, everything is kept that the strategy does not name. When nothing fits, says what would. The spinner says what takes long.
pub fn compile(
    file: &ModelFile,
    options: &CompileOptions,
    budget: Option<u64>,
    price: &dyn Price,
    spinner: &Spinner,
) -> Result<Compiled, Failure> {
    if let Some(budget) = budget {
        spinner.says(&format!("choosing what to keep within {}", size(budget as f64)));
    }
    let aim = budget.map_or(Aim::Fastest, Aim::Within);
    match file.compile_within(options, aim, price)? {
        Ok(compiled) => {
            if !compiled.places.is_empty() {
                say!("{}", told_places(&compiled, budget));
            }
            Ok(compiled)
        }
        Err(CompileError::Strategy(error)) => Err(file.misfit(options, &error)),
        Err(CompileError::Memory(misfit)) => {
            // It takes a while to find out what would fit.
            spinner.tells("looking for what would fit");
            let fits = advice::what_fits(file, options, misfit.budget, price, spinner);
            Err(Failure::Input(format!("it does not fit: {misfit}\n  = help: {fits}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(budget("58GiB"), Ok(Budget::Bytes(58 << 30)));
        assert_eq!(budget("1.5 kB"), Ok(Budget::Bytes(1500)));
        assert_eq!(budget("4096B"), Ok(Budget::Bytes(4096)));
        assert_eq!(budget("64000000000"), Ok(Budget::Bytes(64_000_000_000)));
        assert!(budget("58").is_err_and(|e| e.contains("is it 58GiB?")));
        assert_eq!(budget("device"), Ok(Budget::Device));
        for wrong in ["", "GiB", "-1GB", "nan", "58 gigs"] {
            assert!(budget(wrong).is_err_and(|e| e.starts_with("it is a size such as 58GiB")), "{wrong}");
        }
        for zero in ["0", "0GiB", "0.5B"] {
            assert_eq!(budget(zero), Err(format!("`{zero}` is zero bytes")));
        }
        for large in ["1e30", "99999999999999999TiB", "inf"] {
            assert_eq!(budget(large), Err(format!("`{large}` is too large: a size is below 1000000TB")));
        }
    }
}
