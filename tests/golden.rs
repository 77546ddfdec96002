//! The standard library against PyTorch: losses and gradients of its blocks, by the oracle over the backward graphs.
//!
//! `tests/golden/make.py` makes the numbers; each case is a small model beside its data.

use crate::common;

use common::oracle::Oracle;
use common::{Example, options, root};
use forebay_ir::DType;
use forebay_ir::reference::Tensor;
use rustc_hash::FxHashMap;
use safetensors::{Dtype, SafeTensors};

/// A file's tensors by name, as f64.
fn read(name: &str) -> FxHashMap<String, Tensor> {
    let bytes = std::fs::read(root().join(format!("tests/golden/{name}.safetensors"))).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let convert = |view: safetensors::tensor::TensorView<'_>| {
        let dims: Vec<u64> = view.shape().iter().map(|n| *n as u64).collect();
        let data: Vec<f64> = match view.dtype() {
            Dtype::F64 => view.data().chunks_exact(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect(),
            Dtype::I32 => {
                view.data().chunks_exact(4).map(|c| f64::from(i32::from_le_bytes(c.try_into().unwrap()))).collect()
            }
            dtype => panic!("{dtype:?}"),
        };
        Tensor::new(dims, data)
    };
    file.tensors().into_iter().map(|(name, view)| (name, convert(view))).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-11 * (1.0 + a.abs().max(b.abs()))
}

fn check(name: &str) {
    let text = std::fs::read_to_string(root().join(format!("tests/golden/{name}.moe"))).unwrap();
    let model = Example { name: name.into(), text }.check(&options(DType::F64, vec![]), true, None);
    let golden = read(name);
    let data = model.inputs.iter().map(|i| (i.clone(), golden[&format!("input.{i}")].clone())).collect();
    let mut oracle = Oracle::new(&model, 0, data);
    let given = golden.keys().filter(|k| k.starts_with("param.")).count();
    assert_eq!(given, model.params.len(), "{name}: the same parameters");
    for (i, param) in model.params.iter().enumerate() {
        let tensor = golden.get(&format!("param.{}", param.name)).unwrap_or_else(|| panic!("{name}: {}", param.name));
        assert_eq!(tensor.dims, oracle.params[i].dims, "{name}: {}", param.name);
        oracle.params[i] = tensor.clone();
    }

    let forward = oracle.forward(None);
    let total = golden["total"].data[0];
    assert!(close(forward.total, total), "{name}: the total loss is {}, PyTorch has {total}", forward.total);
    for (loss, value) in &forward.losses {
        // A loss of a block is named by its path.
        let loss = loss.rsplit('.').next().unwrap();
        let wanted = golden[&format!("loss.{loss}")].data[0];
        assert!(close(*value, wanted), "{name}: {loss} is {value}, PyTorch has {wanted}");
    }
    for (param, gradient) in model.params.iter().zip(oracle.gradients()) {
        let wanted = &golden[&format!("grad.{}", param.name)];
        for (i, (a, b)) in gradient.data.iter().zip(&wanted.data).enumerate() {
            assert!(close(*a, *b), "{name}: gradient of {}[{i}] is {a}, PyTorch has {b}", param.name);
        }
    }
}

#[test]
fn attention_gqa() {
    check("attention_gqa");
}

#[test]
fn attention_window() {
    check("attention_window");
}

#[test]
fn gated_delta_net() {
    check("gated_delta_net");
}

#[test]
fn mamba2() {
    check("mamba2");
}

#[test]
fn mamba2_in_rows_shorter_than_its_convolution() {
    check("mamba2_short");
}

#[test]
fn attention_sinks() {
    check("attention_sinks");
}

#[test]
fn attention_packed() {
    check("attention_packed");
}

#[test]
fn mla() {
    check("mla");
}

#[test]
fn moe_softmax() {
    check("moe_softmax");
}

#[test]
fn moe_sigmoid() {
    check("moe_sigmoid");
}
