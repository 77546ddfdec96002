//! `forebay explain`

use super::sharding;
use crate::args::{ModelArgs, RewriteArgs};
use crate::failure::Failure;
use crate::model::ModelFile;
use crate::output::{print, print_json, short};
use forebay_compiler::autodiff::Options;
use forebay_compiler::pipeline::{CompileOptions, differentiated_after_fusion, optimizer_graphs};
use forebay_compiler::rewrite::{self, Differentiation, Report, Story};
use forebay_dsl::model::CheckedModel;
use forebay_ir::Graph;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Explain what rewriting made of a model (which fused ops, by which rules, at what cost), or how ranks share it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay explain model.moe
  forebay explain model.moe --block layers
  forebay explain model.moe --block layers --node attention.o
  forebay explain model.moe --rewrite without=attention --json
  forebay explain model.moe --sharding --strategy dp=2,tp=2,ep=4,zero=1 --batch 2
  forebay explain model.moe --sharding --strategy tp=2 --block layers --json")]
pub struct Args {
    /// The model file, or bench-tiny or bench-small, or textual IR (`.ir`)
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// One block: a segment (layers, layers.backward, optimizer), or the name that values of an instance begin with (attention)
    #[arg(long, value_name = "B")]
    block: Option<String>,
    /// One value, with its whole chain of rules
    #[arg(long, value_name = "N")]
    node: Option<String>,
    /// How the ranks of --strategy share the model instead: how parameters and values between layers lie, which collective is where and why, and
    /// what a rank sends and keeps
    #[arg(long, conflicts_with = "node")]
    sharding: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: ModelArgs,
    #[command(flatten)]
    rewriting: RewriteArgs,
}

pub fn explain(args: Args) -> Result<(), Failure> {
    let mut options = args.settings.options()?;
    options.rewrite = args.rewriting.options();
    let file = ModelFile::read(&args.model)?.with(&args.settings)?;
    let (model, micro_batches) = file.training_in_parts(&options)?;
    options.micro_batches = micro_batches;
    if args.sharding {
        return sharding::explain(&model, &options, args.block.as_deref(), args.json);
    }
    let graphs = graphs(&model, &options)?;
    let mut all: Vec<(String, Report, Vec<Story>)> = vec![];
    let mut fused: Vec<String> = vec![];
    for (name, graph, differentiation) in &graphs {
        let rewriting = rewrite::Options { differentiation: *differentiation, ..options.rewrite.clone() };
        let (_, report, mut stories) = rewrite::explain(graph, &rewriting);
        fused.extend(stories.iter().map(|s| s.value.clone()));
        let segment = |b: &str| b == name || name.strip_prefix(b).is_some_and(|rest| rest.starts_with('.'));
        let whole = args.block.as_deref().is_none_or(segment);
        let begins =
            |s: &Story| args.block.as_deref().is_some_and(|b| s.value.starts_with(&format!("{b}.")) || s.value == b);
        stories.retain(|s| {
            (whole || begins(s)) && args.node.as_deref().is_none_or(|n| n.trim_start_matches('%') == s.value)
        });
        if (whole && args.node.is_none()) || !stories.is_empty() {
            all.push((name.clone(), report, stories));
        }
    }
    if all.is_empty() {
        let what = match (&args.block, &args.node) {
            (Some(block), None) => format!("no segment and no fused op of the name `{block}`"),
            (_, Some(node)) => {
                return Err(Failure::Input(format!(
                    "no fused op is called `{node}`; the fused ops are {}",
                    fused.join(", ")
                )));
            }
            (None, None) => "no segment".into(),
        };
        return Err(Failure::Input(format!("{what}; the segments are {}", names(&graphs))));
    }
    if args.json {
        return print_json(
            &all.iter().map(|(name, report, stories)| as_json(name, report, stories)).collect::<Vec<_>>(),
        );
    }
    let text: Vec<String> = all.iter().map(|(name, report, stories)| as_text(name, report, stories)).collect();
    print(&text.join("\n"))
}

/// What is rewritten: of each segment the forward graph and the differentiated one, and the optimizer's steps.
fn graphs(model: &CheckedModel, options: &CompileOptions) -> Result<Vec<(String, Graph, Differentiation)>, Failure> {
    let mut graphs = vec![];
    for segment in &model.segments {
        let forward = &segment.forward;
        let wanted = Options::all_floats(forward).keeping(options.strategy.keep);
        let (differentiated, _) = differentiated_after_fusion(forward, &wanted, &options.rewrite);
        graphs.push((segment.name.clone(), forward.clone(), Differentiation::None));
        graphs.push((format!("{}.backward", segment.name), differentiated.backward, Differentiation::Done));
    }
    let step = optimizer_graphs(model, options).map_err(|error| Failure::Input(error.to_string()))?;
    graphs.extend(step.into_iter().map(|g| (g.name.clone(), g, Differentiation::None)));
    Ok(graphs)
}

fn names(graphs: &[(String, Graph, Differentiation)]) -> String {
    graphs.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>().join(", ")
}

fn as_text(name: &str, report: &Report, stories: &[Story]) -> String {
    let micro = |s: f64| if s * 1e6 < 999.5 { format!("{:.1} µs", s * 1e6) } else { format!("{:.2} ms", s * 1e3) };
    let mut text = format!("{name}\n");
    text += &format!("  ops        {} -> {}\n", report.ops[0], report.ops[1]);
    text += &format!("  cost       {} -> {}, each op by itself\n", micro(report.seconds[0]), micro(report.seconds[1]));
    text += &format!("  bytes      {} -> {}\n", short(report.bytes[0]), short(report.bytes[1]));
    if report.iterations > 0 {
        text += &format!(
            "  e-graph    {} terms in {} classes after {} iterations: {}\n",
            report.size[0], report.size[1], report.iterations, report.stop
        );
        let answer = if report.exact {
            "branch and bound: proven to be the cheapest choice".to_string()
        } else {
            let gap = report.gap * 100.0;
            format!("greedy, improved until branches ran out: a cheaper choice could save {gap:.1} % at most")
        };
        text += &format!("  extraction {answer}\n");
    } else {
        text += &format!("  nothing was rewritten: {}\n", report.stop);
    }
    for story in stories {
        text += &format!("\n  {}\n", story.op);
        if !story.source.is_empty() {
            text += &format!("    from {}\n", story.source.join(", "));
        }
        for step in &story.steps {
            let times = if step.times > 1 { format!(" (x{})", step.times) } else { String::new() };
            text += &format!("    {}{times}\n", step.rule);
            if !step.equation.is_empty() {
                text += &format!("        {}\n", step.equation);
            }
        }
    }
    text
}

fn as_json(name: &str, report: &Report, stories: &[Story]) -> Value {
    let story = |s: &Story| {
        let steps: Vec<Value> =
            s.steps.iter().map(|t| json!({"rule": t.rule, "times": t.times, "equation": t.equation})).collect();
        json!({"value": s.value, "op": s.op, "source": s.source, "steps": steps})
    };
    json!({
        "segment": name, "ops": report.ops, "seconds": report.seconds, "bytes": report.bytes, "fused": report.fused,
        "uses": report.uses, "iterations": report.iterations, "terms": report.size[0], "classes": report.size[1],
        "stop": report.stop, "exact": report.exact, "gap": report.gap,
        "stories": stories.iter().map(story).collect::<Vec<_>>(),
    })
}
