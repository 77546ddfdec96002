//! Ways of experts' rows between nodes: ranks train as one alone, whatever the way, and send what the formulas say.

mod common;

use common::Example;
use common::training::{ROWS, compare, plan, train};
use forebay_ir::DType;
use forebay_plan::{Direction, Kernel, Plan};

/// Nodes of data-parallel ranks, of tensor-parallel ones, and both; experts' widths shared within them; pieces, pairs, gradients summed layer by layer.
const STRATEGIES: [&str; 10] = [
    "dp=4,ep=4,micro=1,node=2",
    "dp=2,tp=2,ep=4,micro=2,node=2",
    "tp=4,ep=4,micro=4,node=2",
    "tp=4,sp=0,ep=4,micro=4,node=2",
    "dp=4,tp=2,ep=8,micro=1,zero=3,node=2",
    "dp=2,cp=2,tp=2,ep=8,micro=2,zero=1,node=4",
    "dp=4,tp=2,etp=2,ep=4,micro=1,node=4",
    "dp=2,tp=2,ep=4,micro=2,node=2,pieces=2",
    "dp=2,pp=2,vpp=2,tp=2,ep=4,micro=2,zero=2,schedule=vpp-overlap,node=2",
    "dp=2,pp=2,tp=2,ep=4,micro=2,schedule=zb-h1,recompute=full,node=2",
];

/// Softmax and sigmoid routers, shared experts, groups of experts, experts of several kinds.
const MODELS: [&str; 6] =
    ["tiny-moe", "deepseek-v3", "pangu-ultra-moe", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-120b"];

/// The plan at reduced size, with layers for every stage.
fn of(example: &Example, text: &str, compute: DType) -> Result<Plan, String> {
    let has_layers = example.reduced().iter().any(|(name, _)| name == "layers");
    plan(example, text, compute, if has_layers { &[("layers", 4)] } else { &[] })
}

fn all() -> bool {
    std::env::var_os("FOREBAY_TEST_ALL").is_some()
}

#[test]
fn every_way_trains_as_one_rank() {
    let mut compared = 0;
    for (i, name) in MODELS.into_iter().enumerate() {
        let example = Example::named(name);
        let mut alone = None;
        for (j, text) in STRATEGIES.into_iter().enumerate() {
            // Each model meets a few strategies, each strategy a few models.
            if !all() && (i + j) % 3 != 0 {
                continue;
            }
            let text = format!("{text},dispatch=hierarchical");
            let what = format!("{name} {text}");
            // Degrees that do not divide a model's heads.
            let Ok(flat) = of(&example, STRATEGIES[j], DType::F64) else { continue };
            let apart = of(&example, &text, DType::F64).unwrap_or_else(|e| panic!("{what}: {e}"));
            let run = train(&what, &apart, 3);
            compared += 1;
            compare(&what, &run, &train(&what, &flat, 3), 1e-10);
            // Losses with statistics over ranks see other rows than one rank's micro-batches.
            if STRATEGIES[j].contains("dp") && example.text.contains("scope") {
                continue;
            }
            let alone = alone.get_or_insert_with(|| {
                let one = of(&example, &format!("micro={ROWS}"), DType::F64);
                train(name, &one.expect("one rank takes every model"), 3)
            });
            compare(&what, &run, alone, 1e-10);
        }
    }
    assert!(compared >= 14, "{compared} plans were compared");
}

/// In f32 sums round otherwise; and twice the same is the same, bit for bit.
#[test]
fn in_f32_every_way_is_close_and_reproducible() {
    let example = Example::named("tiny-moe");
    let alone = train("alone", &of(&example, &format!("micro={ROWS}"), DType::F32).expect("one rank"), 2);
    for text in STRATEGIES {
        let text = format!("{text},dispatch=hierarchical");
        let plan = of(&example, &text, DType::F32).unwrap_or_else(|e| panic!("{text}: {e}"));
        let run = train(&text, &plan, 2);
        compare(&text, &run, &alone, 1e-4);
        assert!(run.bits() == train(&text, &plan, 2).bits(), "{text}: other bits");
    }
}

/// Elements that a rank sends between nodes, and within its own, in the forward pass of a layer with experts.
fn sent(plan: &Plan) -> (u64, u64) {
    let (mut between, mut within) = (0, 0);
    let far = |dims: &[u32]| dims.iter().any(|d| plan.mesh[*d as usize].name.starts_with("dp"));
    let programs = plan.programs.iter().filter(|p| p.name.contains("forward") && p.name.contains("layers"));
    let program = programs.max_by_key(|p| p.instructions.len()).expect("a layer's program");
    for instruction in &program.instructions {
        match &instruction.kernel {
            Kernel::Exchange(k) if k.dtype != forebay_plan::DType::I32 && far(&k.group) => {
                between += k.piece() * (k.ranks - 1);
            }
            Kernel::AllToAllV(k) if k.direction == Direction::Dispatch || k.direction == Direction::Combine => {
                let to_others = k.even * k.row * (k.ranks - 1) / k.ranks;
                *if far(&k.group) { &mut between } else { &mut within } += to_others;
            }
            _ => {}
        }
    }
    (between, within)
}

/// Tokens cross to each other node once, with their shares, and come back as sums: 2 t h (N − 1) + t k (N − 1) elements, whatever k; rows stay within nodes:
/// 2 k t h (n − 1)/n. Flat, rows go to all ranks.
#[test]
fn tokens_cross_between_nodes_once() {
    let example = Example::named("tiny-moe");
    let of = |text: &str| plan(&example, text, DType::F32, &[]).unwrap_or_else(|e| panic!("{text}: {e}"));
    let flat = of("dp=4,tp=2,ep=8,micro=1");
    let apart = of("dp=4,tp=2,ep=8,micro=1,dispatch=hierarchical,node=2");
    let h = example.reduced().iter().find(|(name, _)| name == "d").map(|(_, n)| n.clone()).expect("a width");
    let Some(k) = apart.programs.iter().flat_map(|p| &p.instructions).find_map(|i| match &i.kernel {
        Kernel::TopK(k) => Some(k.k),
        _ => None,
    }) else {
        panic!("a router chooses")
    };
    let forebay_dsl::model::Const::Int(h) = h else { panic!("a width is a number") };
    let (t, h, nodes, ranks) = (16 / 2, h as u64, 4, 2);
    assert_eq!(sent(&apart), (2 * t * h * (nodes - 1) + t * k * (nodes - 1), 2 * k * t * h * (ranks - 1) / ranks));
    assert_eq!(sent(&flat), (2 * k * t * h * 7 / 8, 0));
}

#[test]
fn what_cannot_be_decomposed_is_refused() {
    let refused = |name: &str, text: &str| {
        let result = plan(&Example::named(name), text, DType::F32, &[]);
        result.expect_err(&format!("{name} {text}"))
    };
    let cases = [
        ("tiny-moe", "dp=4,ep=4,micro=1,dispatch=hierarchical"),
        ("tiny-moe", "dp=4,ep=4,micro=1,dispatch=hierarchical,node=4"),
        ("tiny-moe", "dp=4,ep=4,micro=1,dispatch=hierarchical,node=1"),
        ("tiny-moe", "dp=4,ep=4,micro=1,dispatch=hierarchical,node=3"),
        ("expert-choice", "tp=4,ep=4,micro=4,dispatch=hierarchical,node=2"),
    ];
    let all: Vec<String> = cases.iter().map(|(name, text)| format!("{name} {text}\n{}", refused(name, text))).collect();
    insta::assert_snapshot!(all.join("\n\n"));
}
