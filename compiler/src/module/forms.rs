//! The forms of a model in one text: as it trains, as it is evaluated, and for generation. Each is a module of its own, whose header also says
//!
//! ```text
//!   form train
//!   dtype bf16
//!   micro_batches 2
//! ```
//!
//! The form `eval` is left out when it is that of training; a text without `generate` generates with the rows of a batch.

use super::{Module, parse, print};
use crate::pipeline::Models;
use forebay_dsl::model::{CheckedModel, Tensor};
use forebay_ir::text::ParseError;
use forebay_ir::{DType, Graph, InputRole};
use std::collections::HashMap;

/// A model in all its forms, and what it was checked for.
#[derive(Debug)]
pub struct Forms {
    /// The forms.
    pub models: Models,
    /// The compute type.
    pub compute: DType,
    /// Micro-batches of a step.
    pub micro_batches: u32,
}

/// What a file of textual IR holds.
#[derive(Debug)]
pub enum File {
    /// A model.
    Model(Box<Forms>),
    /// Graphs alone.
    Graphs(Vec<Graph>),
}

const NAMES: [&str; 3] = ["train", "eval", "generate"];

/// The forms as text; [`parse_file`] is its inverse.
pub fn print_forms(forms: &Forms) -> String {
    let Models { train, eval, generate } = &forms.models;
    let (dtype, micro_batches) = (forms.compute.name(), forms.micro_batches);
    let mut out = String::new();
    for (name, model) in NAMES.into_iter().zip([train, eval, generate]) {
        let text = print(model);
        if name == "eval" && text == print(train) {
            continue;
        }
        let (first, rest) = text.split_once('\n').expect("a header has lines");
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&format!("{first}\n  form {name}\n  dtype {dtype}\n  micro_batches {micro_batches}\n{rest}"));
    }
    out
}

/// Reads a file of textual IR.
///
/// # Errors
/// As [`parse`]; and when a form is missing or there twice, or forms disagree on what they share.
pub fn parse_file(source: &str) -> Result<File, Vec<ParseError>> {
    let lines: Vec<&str> = source.lines().collect();
    let starts: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].trim_start().starts_with("model ")).collect();
    if starts.is_empty() {
        return match parse(source)? {
            Module::Graphs(graphs) => Ok(File::Graphs(graphs)),
            Module::Model(_) => unreachable!("a model has a header"),
        };
    }
    let mut models: [Option<CheckedModel>; 3] = [None, None, None];
    let mut shared = None;
    for (number, &start) in starts.iter().enumerate() {
        // What stands before the first header is for its parser to judge.
        let start = if number == 0 { 0 } else { start };
        let end = starts.get(number + 1).copied().unwrap_or(lines.len());
        let fail = |message: String| vec![ParseError { line: starts[number] + 1, column: 1, width: 0, message }];
        // Blank lines keep the line numbers of errors.
        let text = "\n".repeat(start) + &lines[start..end].join("\n");
        let Module::Model(model) = parse(&text)? else {
            return Err(fail("the model's header must come first".into()));
        };
        let header = Header::read(&lines[starts[number]..end]).map_err(fail)?;
        types_agree(&model, header.compute).map_err(fail)?;
        if *shared.get_or_insert((header.compute, header.micro_batches)) != (header.compute, header.micro_batches) {
            return Err(fail("the forms of a model have one `dtype` and one number of `micro_batches`".into()));
        }
        if models[header.form].replace(*model).is_some() {
            return Err(fail(format!("the form `{}` is there twice", NAMES[header.form])));
        }
    }
    let [train, eval, generate] = models;
    let missing = ParseError { line: 1, column: 1, width: 0, message: "there is no form `train`".into() };
    let train = train.ok_or_else(|| vec![missing])?;
    for (name, form) in [("eval", &eval), ("generate", &generate)] {
        if let Some(message) = form.as_ref().and_then(|form| differs(&train, form)) {
            let message = format!("the form `{name}` does not fit the form `train`: {message}");
            return Err(vec![ParseError { line: 1, column: 1, width: 0, message }]);
        }
    }
    let models = Models {
        eval: eval.unwrap_or_else(|| train.clone()),
        generate: generate.unwrap_or_else(|| train.clone()),
        train,
    };
    let (compute, micro_batches) = shared.expect("there is a header");
    Ok(File::Model(Box::new(Forms { models, compute, micro_batches })))
}

/// Parameters are of the compute type.
fn types_agree(model: &CheckedModel, compute: DType) -> Result<(), String> {
    let graphs = model.segments.iter().map(|s| &s.forward);
    for (graph, input) in graphs.flat_map(|g| g.inputs.iter().map(move |i| (g, i))) {
        let dtype = graph.ty(input.value).dtype;
        if input.role == InputRole::Param && dtype != compute {
            let (dtype, compute) = (dtype.name(), compute.name());
            let name = &graph.node(input.value).name;
            return Err(format!("the dtype is {compute}, but `{name}` of graph @{} is {dtype}", graph.name));
        }
    }
    Ok(())
}

/// What a form has that training has not, or has otherwise.
fn differs(train: &CheckedModel, form: &CheckedModel) -> Option<String> {
    for (ours, theirs) in [(&train.params, &form.params), (&train.states, &form.states)] {
        let known: HashMap<&str, &Tensor> = ours.iter().map(|t| (t.name.as_str(), t)).collect();
        let sizes = |t: &Tensor| t.axes.iter().map(|(_, _, n)| *n).collect::<Vec<_>>();
        for tensor in theirs {
            match known.get(tensor.name.as_str()) {
                None => return Some(format!("`{}` is not there", tensor.name)),
                Some(other) if sizes(other) != sizes(tensor) || other.init != tensor.init => {
                    return Some(format!("`{}` has another shape or initialiser there", tensor.name));
                }
                Some(_) => {}
            }
        }
    }
    None
}

/// What a header says of its form.
struct Header {
    form: usize,
    compute: DType,
    micro_batches: u32,
}

impl Header {
    fn read(lines: &[&str]) -> Result<Header, String> {
        let mut header = Header { form: 0, compute: DType::F32, micro_batches: 1 };
        for line in lines.iter().map(|l| l.trim()).take_while(|l| *l != "}") {
            match line.split_once(' ') {
                Some(("form", name)) => {
                    let known = NAMES.iter().position(|n| *n == name.trim());
                    header.form = known.ok_or("a form is `train`, `eval` or `generate`")?;
                }
                Some(("dtype", name)) => {
                    let known = [DType::F32, DType::BF16, DType::F64].into_iter().find(|d| d.name() == name.trim());
                    header.compute = known.ok_or("a dtype is `f32`, `bf16` or `f64`")?;
                }
                Some(("micro_batches", n)) => {
                    let n = n.trim().parse().ok().filter(|n| *n > 0);
                    header.micro_batches = n.ok_or("`micro_batches` is a number from 1 on")?;
                }
                _ => {}
            }
        }
        Ok(header)
    }
}
