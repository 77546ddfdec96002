//! What attention sees of rows that are packed with documents.
//!
//! Kernels that stay within documents skip what no query of a block sees, so that what they take follows the lengths of documents, which only data knows. Given their mean
//! length, attention has a causal window that sees as much: of n tokens a query sees (n + 1) / 2 keys in the mean of a document, whatever the row. Documents of uneven
//! lengths see more than their mean says, by the square of what they differ.

use forebay_plan::{AttentionInputs, Kernel, Plan, Program, Role};

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
    let (row, tokens) = (plan.settings.seq, tokens.max(1));
    let is_meant = |inputs: &AttentionInputs| inputs.causal && (within == Within::All || inputs.documents.is_some());
    let less = if tokens < row { unseen(plan, tokens, is_meant) } else { 0.0 };
    let instructions = plan.programs.iter_mut().flat_map(|program| &mut program.instructions);
    let inputs = instructions.filter_map(|instruction| match &mut instruction.kernel {
        Kernel::Attention(k) => Some(&mut k.inputs),
        Kernel::AttentionBackward(k) => Some(&mut k.inputs),
        _ => None,
    });
    let mut any = false;
    for inputs in inputs.filter(|inputs| is_meant(inputs)) {
        any = true;
        if tokens < row {
            inputs.window = window(inputs, row, tokens);
        }
    }
    // Of a step's FLOPs a third are those of forward passes.
    plan.settings.flops_per_step = (plan.settings.flops_per_step - 3.0 * less).max(0.0);
    any
}

/// FLOPs that a step counts for attention in its forward passes, on all ranks, and that documents of so many tokens do not see.
fn unseen(plan: &Plan, tokens: u64, is_meant: impl Fn(&AttentionInputs) -> bool) -> f64 {
    let row = plan.settings.seq;
    let of_kernel = |kernel: &Kernel| match kernel {
        Kernel::Attention(k) if is_meant(&k.inputs) => {
            let (window, keys) = (k.inputs.window, k.inputs.keys);
            let all = k.inputs.queries as f64 * counted(window, keys);
            let part = counted(window, tokens) / counted(window, row);
            kernel.flops() * all / k.inputs.visible() * (1.0 - part)
        }
        _ => 0.0,
    };
    let of_program = |program: &Program| -> f64 {
        let instructions = program.instructions.iter().filter(|_| program.name.ends_with(".forward"));
        instructions.map(|instruction| of_kernel(&instruction.kernel)).sum()
    };
    let programs: Vec<f64> = plan.programs.iter().map(of_program).collect();
    let of_role = |role: &Role| {
        let ranks: f64 = role.coordinates.iter().map(|(from, to)| f64::from(to - from)).product();
        let calls = role.phases.iter().filter(|phase| phase.name == "train").flat_map(|phase| &phase.calls);
        ranks * calls.map(|call| programs[call.program as usize]).sum::<f64>()
    };
    plan.roles.iter().map(of_role).sum()
}

/// Keys of a causal sequence that a query sees as a step's FLOPs count them: half of all, or the window where that is shorter (MFU, docs/cost-model.md).
fn counted(window: u64, tokens: u64) -> f64 {
    let half = tokens as f64 / 2.0;
    if window > 0 { half.min(window as f64) } else { half }
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
    fn by_hand(window: u64, tokens: u64) -> f64 {
        let most = if window == 0 { tokens } else { window };
        (1..=tokens).map(|position| position.min(most)).sum::<u64>() as f64 / tokens as f64
    }

    #[test]
    fn queries_see_what_documents_have() {
        for window in [0, 100] {
            for tokens in [1, 16, 256, 1000, ROW, 10 * ROW] {
                let mut plan = plan("dp=1", window);
                assert!(stay_within(&mut plan, tokens, Within::Marked));
                let (all, want) = (seen(&plan), by_hand(window, tokens.min(ROW)));
                assert!(all.len() >= 2 && all.iter().all(|seen| (seen - want).abs() < 0.6), "{all:?}, not {want}");
            }
        }
    }

    /// A step counts as much less as documents do not see, three times, and as much on however many ranks, in however many parts.
    #[test]
    fn steps_count_what_is_seen() {
        // (`packed-docs.moe`: 4 heads of 32.)
        let products = 2.0 * 2.0 * 4.0 * 32.0;
        for window in [0, 256] {
            // Half of a row or the window, and half of a document, which is a quarter of the row.
            let (whole, part) = if window == 0 { (512.0, 128.0) } else { (256.0, 128.0) };
            let want = 3.0 * ROW as f64 * products * (whole - part);
            for strategy in ["dp=1", "dp=1,micro=2", "dp=2", "cp=2,cp_algo=gather", "tp=2"] {
                let mut plan = plan(strategy, window);
                let before = plan.settings.flops_per_step;
                stay_within(&mut plan, ROW / 4, Within::Marked);
                let less = before - plan.settings.flops_per_step;
                let want = want * plan.settings.batch as f64;
                assert!((less / want - 1.0).abs() < 0.01, "{strategy}, {window}: {less}, not {want}");
            }
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
        let part = by_hand(0, ROW / 4) / by_hand(0, ROW);
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
