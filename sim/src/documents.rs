//! What attention sees of rows that are packed with documents.
//!
//! Kernels that stay within documents skip what no query of a block sees, so that what they take follows the lengths of documents, which only data knows. Given their mean
//! length, attention has a causal window that sees as much: of n tokens a query sees (n + 1) / 2 keys in the mean of a document, whatever the row. Documents of uneven
//! lengths see more than their mean says, by the square of what they differ.

use forebay_plan::{AttentionInputs, Kernel, Plan, Role};

/// Which attention stays within documents. What sees keys of later positions is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// Causal attention that is told which document a token is in.
    Marked,
    /// All causal attention: that of a run that had documents, whatever its plan was made of.
    All,
}

/// Makes attention see as much as within documents of so many tokens each, and a step count as much less. Says whether any attention of the plan stays within documents.
pub fn stay_within(plan: &mut Plan, tokens: u64, within: Within) -> bool {
    let row = plan.settings.seq;
    let before = forward_flops(plan);
    let instructions = plan.programs.iter_mut().flat_map(|program| &mut program.instructions);
    let inputs = instructions.filter_map(|instruction| match &mut instruction.kernel {
        Kernel::Attention(k) => Some(&mut k.inputs),
        Kernel::AttentionBackward(k) => Some(&mut k.inputs),
        _ => None,
    });
    let is_meant = |inputs: &AttentionInputs| inputs.causal && (within == Within::All || inputs.documents.is_some());
    let mut any = false;
    for inputs in inputs.filter(|inputs| is_meant(inputs)) {
        any = true;
        if tokens < row {
            inputs.window = window(inputs, row, tokens.max(1));
        }
    }
    // Of a step's FLOPs a third are those of forward passes.
    let less = 3.0 * (before - forward_flops(plan));
    plan.settings.flops_per_step = (plan.settings.flops_per_step - less).max(0.0);
    any
}

/// FLOPs of attention in the forward passes of a training step, of all ranks.
fn forward_flops(plan: &Plan) -> f64 {
    let of_program: Vec<f64> = plan
        .programs
        .iter()
        .map(|program| {
            let is_forward = program.name.ends_with(".forward");
            let kernels = program.instructions.iter().map(|instruction| &instruction.kernel).filter(|_| is_forward);
            kernels.filter(|kernel| matches!(kernel, Kernel::Attention(_))).map(Kernel::flops).sum()
        })
        .collect();
    let of_role = |role: &Role| {
        let ranks: f64 = role.coordinates.iter().map(|(from, to)| f64::from(to - from)).product();
        let calls = role.phases.iter().filter(|phase| phase.name == "train").flat_map(|phase| &phase.calls);
        ranks * calls.map(|call| of_program[call.program as usize]).sum::<f64>()
    };
    plan.roles.iter().map(of_role).sum()
}

/// The window with which a kernel sees of a whole row as much as it does now within documents.
fn window(inputs: &AttentionInputs, row: u64, tokens: u64) -> u64 {
    let part = mean_seen(inputs.window, tokens) / mean_seen(inputs.window, row);
    let queries = inputs.queries as f64;
    let seen = inputs.visible() / queries * part;
    let window = if inputs.positions.is_some() {
        // (Of positions that are known at run time all are taken to see as much as the window is wide.)
        seen
    } else {
        // w·n − w (w − 1) / 2 = seen · n
        let n = queries + 0.5;
        n - (n * n - 2.0 * seen * queries).max(0.0).sqrt()
    };
    (window.round() as u64).max(1)
}

/// Keys that a query sees in the mean of a causal sequence of so many tokens, with a window or, where it is 0, without.
fn mean_seen(window: u64, tokens: u64) -> f64 {
    let window = if window == 0 { tokens } else { window.min(tokens) } as f64;
    window - window * (window - 1.0) / (2.0 * tokens as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_compiler::pipeline::{CompileOptions, Models, compile};
    use forebay_compiler::shard::Strategy;
    use forebay_dsl::model::{CheckOptions, Const};

    const MODEL: &str = include_str!("../../examples/models/packed-docs.moe");
    const ROW: u64 = 1024;

    fn plan(strategy: &str, window: u64) -> Plan {
        let strategy = Strategy::parse(strategy).expect("a strategy");
        let options = CompileOptions { strategy, ..CompileOptions::default() };
        let sizes = [("batch", 2), ("seq", ROW as i64), ("layers", 1), ("window", window as i64)];
        let overrides = sizes.map(|(name, size)| (name.to_string(), Const::Int(size))).to_vec();
        let check = CheckOptions { overrides, ..options.check_options(true, Some(1), options.micro_batches) };
        let train = forebay_dsl::load(MODEL, &check).expect("the model is right").model;
        let models = Models { eval: train.clone(), generate: train.clone(), train };
        compile(&models, &options).expect("a plan")
    }

    /// Keys that a query sees in the mean in each kernel of attention.
    fn seen(plan: &Plan) -> Vec<f64> {
        let instructions = plan.programs.iter().flat_map(|program| &program.instructions);
        let inputs = instructions.filter_map(|instruction| match &instruction.kernel {
            Kernel::Attention(k) => Some(&k.inputs),
            Kernel::AttentionBackward(k) => Some(&k.inputs),
            _ => None,
        });
        inputs.map(|inputs| inputs.visible() / inputs.queries as f64).collect()
    }

    /// By hand, query by query.
    fn counted(window: u64, tokens: u64) -> f64 {
        let most = if window == 0 { tokens } else { window };
        (1..=tokens).map(|position| position.min(most)).sum::<u64>() as f64 / tokens as f64
    }

    #[test]
    fn queries_see_what_documents_have() {
        for window in [0, 100] {
            for tokens in [1, 16, 256, 1000, ROW, 10 * ROW] {
                let mut plan = plan("dp=1", window);
                assert!(stay_within(&mut plan, tokens, Within::Marked));
                let (all, want) = (seen(&plan), counted(window, tokens.min(ROW)));
                assert!(all.len() >= 2 && all.iter().all(|seen| (seen - want).abs() < 0.6), "{all:?}, not {want}");
            }
        }
    }

    /// What a step counts is what its forward passes see, three times: as much less as documents are shorter.
    #[test]
    fn steps_count_what_is_seen() {
        for strategy in ["dp=1", "dp=1,micro=2", "cp=2,cp_algo=ring"] {
            let of = |tokens: u64| {
                let mut plan = plan(strategy, 0);
                stay_within(&mut plan, tokens, Within::Marked);
                (plan.settings.flops_per_step, forward_flops(&plan))
            };
            let (whole, quarter) = (of(ROW), of(ROW / 4));
            let part = counted(0, ROW / 4) / counted(0, ROW);
            assert!((quarter.1 / whole.1 / part - 1.0).abs() < 0.01, "{strategy}: {quarter:?} {whole:?}");
            assert!(((whole.0 - quarter.0) / (3.0 * whole.1 * (1.0 - part)) - 1.0).abs() < 0.01, "{strategy}");
        }
    }

    /// Ranks that share a row see the same part of it, each of its own keys.
    #[test]
    fn ranks_that_share_rows_see_as_much_of_them() {
        let of = |tokens: u64| {
            let mut plan = plan("cp=2,cp_algo=ring", 0);
            assert!(stay_within(&mut plan, tokens, Within::Marked));
            seen(&plan)
        };
        let (whole, quarter) = (of(ROW), of(ROW / 4));
        let part = counted(0, ROW / 4) / counted(0, ROW);
        assert!(!whole.is_empty() && whole.len() == quarter.len());
        for (whole, quarter) in whole.iter().zip(&quarter) {
            assert!((quarter - whole * part).abs() < 0.6, "{quarter} of {whole}");
        }
    }

    #[test]
    fn other_attention_is_left_as_it_is() {
        let mut plan = plan("dp=1", 0);
        let instructions = plan.programs.iter_mut().flat_map(|program| &mut program.instructions);
        for instruction in instructions {
            match &mut instruction.kernel {
                Kernel::Attention(k) => k.inputs.documents = None,
                Kernel::AttentionBackward(k) => k.inputs.causal = false,
                _ => {}
            }
        }
        let before = plan.clone();
        assert!(
            !stay_within(&mut plan, 16, Within::Marked) && plan == before && stay_within(&mut plan, 16, Within::All)
        );
    }
}
