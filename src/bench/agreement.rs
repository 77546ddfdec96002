//! Do both compute the same? The peer's first weights and its batch go into our run, and five steps must have the same losses: which means the
//! same forward pass, the same gradients, the same clipping and the same AdamW.

use super::runner::Runner;
use super::torch::Answer;
use crate::failure::Failure;
use forebay_plan::{Plan, Tensor, TensorKind};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;
use std::path::Path;

/// Steps compared.
pub const STEPS: u64 = 5;
/// How far losses may differ, as a part of them, or in nats where they are below 1: sums in another order, in f32, over five steps. A small loss
/// is what is left of large logits, whose rounding does not shrink with it.
const TOLERANCE: f64 = 1e-5;

/// Our name of a layer's parameter, the peer's, which part of the peer's last axis it is, and of how many.
const OF_A_LAYER: [(&str, &str, usize, usize); 13] = [
    ("rms_norm.gain", "norm1", 0, 1),
    ("attention.wq", "qkv", 0, 3),
    ("attention.wk", "qkv", 1, 3),
    ("attention.wv", "qkv", 2, 3),
    ("attention.wo", "out", 0, 1),
    ("rms_norm_2.gain", "norm2", 0, 1),
    ("moe.router", "router", 0, 1),
    ("moe.gate", "gate_up", 0, 2),
    ("moe.up", "gate_up", 1, 2),
    ("moe.down", "down", 0, 1),
    ("moe.shared.gate", "shared_gate_up", 0, 2),
    ("moe.shared.up", "shared_gate_up", 1, 2),
    ("moe.shared.down", "shared_down", 0, 1),
];
/// The others.
const OF_THE_MODEL: [(&str, &str, usize, usize); 3] =
    [("embed", "embed", 0, 1), ("rms_norm.gain", "norm", 0, 1), ("head", "head", 0, 1)];

/// The losses of both.
#[derive(Debug, Serialize)]
pub struct Agreement {
    pub forebay: Vec<f64>,
    pub torch: Vec<f64>,
    /// The largest difference, as a part of the loss or of 1 nat, whichever is more.
    pub largest: f64,
}

/// Where the peer has one of our parameters: its name, the part of its last axis, of how many parts.
fn place(name: &str) -> Option<(String, usize, usize)> {
    let find = |table: &[(&str, &str, usize, usize)], name: &str, layer: &str| {
        let &(_, peer, part, parts) = table.iter().find(|(ours, ..)| *ours == name)?;
        Some((format!("{layer}{peer}"), part, parts))
    };
    let Some((number, own)) = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) else {
        return find(&OF_THE_MODEL, name, "");
    };
    find(&OF_A_LAYER, own, &format!("layers.{number}."))
}

/// A parameter of a plan that the peer does not have.
pub fn without_peer(plan: &Plan) -> Option<&str> {
    let tensors = plan.roles[0].tensors.iter().filter(|t| matches!(t.kind, TensorKind::Param | TensorKind::State));
    tensors.map(|t| t.name.as_str()).find(|name| place(name).is_none())
}

/// Puts the peer's weights into our run, and gives the text of its batches.
pub fn load(runner: &mut Runner, file: &Path) -> Result<Vec<i32>, Failure> {
    let bytes = std::fs::read(file)?;
    let tensors = SafeTensors::deserialize(&bytes)?;
    runner.set_parameters(|tensor| {
        let (name, part, parts) = place(&tensor.name).expect("every parameter has its place");
        Ok(part_of(tensor, &tensors.tensor(&name)?, part, parts)?.collect())
    })?;
    Ok(elements(tensors.tensor("text")?.data()).map(i32::from_le_bytes).collect())
}

/// Part `part` of `parts` of each row of the peer's tensor.
fn part_of<'t>(
    tensor: &Tensor,
    theirs: &'t TensorView,
    part: usize,
    parts: usize,
) -> Result<impl Iterator<Item = f32> + use<'t>, Failure> {
    let all = theirs.shape().iter().product::<usize>();
    let width = theirs.shape().last().map_or(1, |n| n / parts);
    if theirs.dtype() != Dtype::F32 || tensor.elements() as usize * parts != all {
        return Err(Failure::Input(format!(
            "there is no peer for this model: `{}` is {:?} here, {:?} in {parts} parts in PyTorch",
            tensor.name,
            tensor.dims,
            theirs.shape()
        )));
    }
    let rows = theirs.data().chunks_exact(4 * width * parts);
    Ok(rows.flat_map(move |row| elements(&row[4 * width * part..4 * width * (part + 1)]).map(f32::from_le_bytes)))
}

fn elements(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.chunks_exact(4).map(|b| b.try_into().expect("four bytes"))
}

/// Compares the losses of the first steps.
pub fn compare(runner: &mut Runner, theirs: &Answer) -> Result<Agreement, Failure> {
    let ours = theirs.losses.iter().map(|_| runner.step()).collect::<Result<Vec<f64>, Failure>>()?;
    let agreement = judge(ours, theirs.losses.clone());
    if agreement.largest <= TOLERANCE {
        return Ok(agreement);
    }
    Err(Failure::Input(format!(
        "Forebay and PyTorch do not compute the same: with the same weights and batch their losses differ by up to {:.1e}, relative\n  Forebay  {}\n  PyTorch  {}",
        agreement.largest,
        list(&agreement.forebay),
        list(&agreement.torch)
    )))
}

fn judge(forebay: Vec<f64>, torch: Vec<f64>) -> Agreement {
    let difference = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs().max(1.0);
    let largest = forebay.iter().zip(&torch).map(difference).fold(0.0, f64::max);
    Agreement { forebay, torch, largest }
}

/// `5.698912 4.807321`
pub fn list(losses: &[f64]) -> String {
    losses.iter().map(|l| format!("{l:.6}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_plan::{DType, Init};

    #[test]
    fn names() {
        assert_eq!(place("embed"), Some(("embed".into(), 0, 1)));
        assert_eq!(place("layers.11.attention.wk"), Some(("layers.11.qkv".into(), 1, 3)));
        assert_eq!(place("rms_norm.gain"), Some(("norm".into(), 0, 1)));
        assert_eq!(place("layers.0.rms_norm.gain"), Some(("layers.0.norm1".into(), 0, 1)));
        assert_eq!(place("layers.0.attention.bq"), None);
        assert_eq!(place("bias"), None);
    }

    #[test]
    fn parts_of_rows() {
        let data: Vec<u8> = (0..12u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
        let theirs = TensorView::new(Dtype::F32, vec![2, 6], &data).expect("a tensor");
        let (name, kind, dtype) = ("x".to_string(), TensorKind::Param, DType::F32);
        let tensor = |dims| Tensor {
            name: name.clone(),
            kind,
            dtype,
            dims,
            block: vec![],
            range: None,
            form: forebay_plan::Form::Whole,
            space: forebay_plan::Space::Device,
            offset: 0,
            init: Init::Constant(0.0),
        };
        let part = |n| part_of(&tensor(vec![2, 2]), &theirs, n, 3).expect("it fits").collect::<Vec<f32>>();
        assert_eq!((part(0), part(2)), (vec![0.0, 1.0, 6.0, 7.0], vec![4.0, 5.0, 10.0, 11.0]));
        assert!(part_of(&tensor(vec![2, 3]), &theirs, 0, 3).is_err());
    }

    #[test]
    fn differences() {
        assert_eq!(judge(vec![1.0, 2.0], vec![1.0, 2.5]).largest, 0.2);
        assert_eq!(judge(vec![0.25], vec![0.125]).largest, 0.125);
    }
}
