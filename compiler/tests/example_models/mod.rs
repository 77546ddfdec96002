//! The example models at sizes that the oracle can run.

use forebay_dsl::model::{CheckOptions, CheckedModel, Const, Limits};
use forebay_ir::DType;

/// A model at the sizes of its `// reduced: --set …` line, with short sequences.
pub fn reduced(source: &str) -> CheckedModel {
    let line =
        source.lines().find_map(|l| l.strip_prefix("// reduced: --set ")).expect("examples say how to reduce them");
    let set = |pair: &str| {
        let (name, value) = pair.split_once('=').expect("name=value");
        let value = value.parse().map(Const::Int).unwrap_or_else(|_| Const::Float(value.parse().expect("a number")));
        (name.to_string(), value)
    };
    let mut overrides: Vec<(String, Const)> = line.split_whitespace().map(set).collect();
    overrides.push(("seq".into(), Const::Int(8)));
    let options = CheckOptions {
        overrides,
        narrow: DType::F64,
        wide: DType::F64,
        training: true,
        micro_batches: 1,
        limits: Limits::default(),
    };
    forebay_dsl::load(source, &options).unwrap_or_else(|e| panic!("{e:?}")).model
}
