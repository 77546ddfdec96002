//! A training step of a checked model, layer by layer, by the oracle in f64.

use super::Numbers;
use forebay_compiler::autodiff::{Differentiated, Keep, grad_input_name};
use forebay_compiler::pipeline::differentiated_segments;
use forebay_dsl::model::{CheckedModel, Init, Source};
use forebay_ir::reference::{Mode, Tensor, evaluate};
use forebay_ir::{Graph, InputRole, Op, OutputRole, ValueId};
use rustc_hash::FxHashMap;

type Values = FxHashMap<ValueId, Tensor>;

/// A model with its gradients and a batch of data.
pub struct Oracle<'m> {
    pub model: &'m CheckedModel,
    pub params: Vec<Tensor>,
    states: Vec<Tensor>,
    data: FxHashMap<String, Tensor>,
    counts: FxHashMap<String, Tensor>,
    segments: Vec<Differentiated>,
}

/// Choices of the forward pass, by layer, that a perturbed pass keeps.
pub type Choices = Vec<Values>;

/// What a forward pass gives.
pub struct Forward {
    /// The sum of all losses.
    pub total: f64,
    /// Each loss by name.
    pub losses: FxHashMap<String, f64>,
    /// Results of `top_k`, by layer.
    pub choices: Choices,
}

impl<'m> Oracle<'m> {
    /// Parameters by their initialisers (scaled up where they are tiny, so that every gradient is well above rounding), data given.
    pub fn new(model: &'m CheckedModel, seed: u64, data: FxHashMap<String, Tensor>) -> Oracle<'m> {
        let mut numbers = Numbers::new(seed);
        let mut draw = |init: Init, dims: Vec<u64>| {
            let n = dims.iter().product::<u64>();
            let mut value = || match init {
                Init::Constant(c) => c + 0.05 * numbers.normal(),
                Init::Normal(std) | Init::TruncatedNormal(std) => std.max(0.1) * numbers.normal(),
                Init::Uniform(lo, hi) => lo + (hi - lo) * numbers.uniform(),
            };
            Tensor::new(dims, (0..n).map(|_| value()).collect::<Vec<_>>())
        };
        let dims = |t: &forebay_dsl::model::Tensor| t.axes.iter().map(|(_, _, n)| *n).collect::<Vec<_>>();
        let params = model.params.iter().map(|p| draw(p.init, dims(p))).collect();
        let states = model
            .states
            .iter()
            .map(|s| match s.init {
                Init::Constant(c) => Tensor::new(dims(s), vec![c; s.numel() as usize]),
                init => draw(init, dims(s)),
            })
            .collect();
        let mut oracle = Oracle {
            model,
            params,
            states,
            data,
            counts: FxHashMap::default(),
            segments: differentiated_segments(model, Keep::Fewest),
        };
        oracle.counts = oracle.count();
        oracle
    }

    fn count(&self) -> FxHashMap<String, Tensor> {
        let Some(graph) = &self.model.counts else { return FxHashMap::default() };
        let given = graph.inputs.iter().map(|i| (i.value, self.data[&graph.node(i.value).name].clone())).collect();
        let values = evaluate(graph, &given, Mode::F64);
        graph.outputs.iter().map(|o| (o.name.clone(), values[o.value.index()].clone())).collect()
    }

    /// The losses, with the choices of an earlier pass when given.
    pub fn forward(&self, choices: Option<&Choices>) -> Forward {
        let graphs: Vec<&Graph> = self.model.segments.iter().map(|s| &s.forward).collect();
        let passes = self.pass(&graphs, choices);
        let mut forward = Forward { total: 0.0, losses: FxHashMap::default(), choices: vec![] };
        for (layer, values) in self.model.layers.iter().zip(&passes) {
            let graph = graphs[layer.segment];
            for output in &graph.outputs {
                let scalar = || values[output.value.index()].data[0];
                match output.role {
                    OutputRole::Loss => forward.total += scalar(),
                    OutputRole::Metric => *forward.losses.entry(output.name.clone()).or_default() += scalar(),
                    _ => {}
                }
            }
            let chosen = graph.values().filter(|&v| matches!(graph.node(v).op, Op::TopK { .. }));
            forward.choices.push(chosen.map(|v| (v, values[v.index()].clone())).collect());
        }
        forward
    }

    /// All values of all layers.
    fn pass(&self, graphs: &[&Graph], choices: Option<&Choices>) -> Vec<Vec<Tensor>> {
        let mut passes: Vec<Vec<Tensor>> = vec![];
        for (l, layer) in self.model.layers.iter().enumerate() {
            let graph = graphs[layer.segment];
            let mut given = self.common(l, graph);
            let carries = graph.inputs.iter().filter(|i| i.role == InputRole::Carry);
            for (input, source) in carries.zip(&layer.carries) {
                given.insert(input.value, self.carried(graphs, &passes, *source));
            }
            if let Some(choices) = choices {
                given.extend(choices[l].iter().map(|(v, t)| (*v, t.clone())));
            }
            passes.push(evaluate(graph, &given, Mode::F64));
        }
        passes
    }

    fn carried(&self, graphs: &[&Graph], passes: &[Vec<Tensor>], source: Source) -> Tensor {
        let graph = graphs[self.model.layers[source.layer].segment];
        let output = graph.outputs.iter().filter(|o| o.role == OutputRole::Carry).nth(source.output).unwrap();
        passes[source.layer][output.value.index()].clone()
    }

    /// Inputs that do not come from other layers, by name.
    fn common(&self, l: usize, graph: &Graph) -> Values {
        let layer = &self.model.layers[l];
        let forward = &self.model.segments[layer.segment].forward;
        let order = |role: InputRole, name: &str| {
            let mut names = forward.inputs.iter().filter(|i| i.role == role).map(|i| &forward.node(i.value).name);
            names.position(|n| n == name).unwrap()
        };
        let mut given = Values::default();
        for input in &graph.inputs {
            let name = &graph.node(input.value).name;
            let tensor = match input.role {
                InputRole::Data => self.data[name].clone(),
                InputRole::Param => self.params[layer.params[order(InputRole::Param, name)]].clone(),
                InputRole::State => self.states[layer.states[order(InputRole::State, name)]].clone(),
                InputRole::Count => self.counts[name].clone(),
                InputRole::Runtime => Tensor::new([4], [7.0, 1.0, l as f64, 0.0]),
                _ => continue,
            };
            given.insert(input.value, tensor);
        }
        given
    }

    /// The gradient of every parameter by the backward graphs.
    pub fn gradients(&self) -> Vec<Tensor> {
        let graphs: Vec<&Graph> = self.segments.iter().map(|s| &s.forward).collect();
        let passes = self.pass(&graphs, None);
        let mut gradients: Vec<Option<Tensor>> = vec![None; self.params.len()];
        let mut carried: FxHashMap<Source, Tensor> = FxHashMap::default();
        for (l, layer) in self.model.layers.iter().enumerate().rev() {
            let (forward, backward) = (graphs[layer.segment], &self.segments[layer.segment].backward);
            let mut given = self.common(l, backward);
            let names = |role: OutputRole| forward.outputs.iter().filter(move |o| o.role == role);
            let carry_in: Vec<String> = input_names(forward, InputRole::Carry);
            for input in &backward.inputs {
                let name = &backward.node(input.value).name;
                let tensor = match input.role {
                    InputRole::Carry => {
                        let at = carry_in.iter().position(|n| n == name).unwrap();
                        self.carried(&graphs, &passes, layer.carries[at])
                    }
                    InputRole::Saved => {
                        let saved = names(OutputRole::Saved).find(|o| o.name == *name).unwrap();
                        passes[l][saved.value.index()].clone()
                    }
                    InputRole::Grad => {
                        let at = names(OutputRole::Carry).position(|o| grad_input_name(&o.name) == *name).unwrap();
                        let zeros = || {
                            let ty = backward.ty(input.value);
                            let dims: Vec<u64> = backward.dims(&ty.axes).into_iter().map(|(_, n)| n).collect();
                            let n = dims.iter().product::<u64>() as usize;
                            Tensor::new(dims, vec![0.0; n])
                        };
                        carried.get(&Source { layer: l, output: at }).cloned().unwrap_or_else(zeros)
                    }
                    _ => continue,
                };
                given.insert(input.value, tensor);
            }
            let values = evaluate(backward, &given, Mode::F64);
            let params = input_names(&self.model.segments[layer.segment].forward, InputRole::Param);
            for output in &backward.outputs {
                let value = &values[output.value.index()];
                match output.name.split_once('.').unwrap() {
                    ("param", name) => {
                        let param = layer.params[params.iter().position(|n| n == name).unwrap()];
                        add(gradients[param].get_or_insert_with(|| zeros_like(value)), value);
                    }
                    (_, name) => {
                        let source = layer.carries[carry_in.iter().position(|n| n == name).unwrap()];
                        add(carried.entry(source).or_insert_with(|| zeros_like(value)), value);
                    }
                }
            }
        }
        let given = gradients.into_iter().zip(&self.params);
        given.map(|(g, p)| g.unwrap_or_else(|| zeros_like(p))).collect()
    }
}

fn input_names(graph: &Graph, role: InputRole) -> Vec<String> {
    graph.inputs.iter().filter(|i| i.role == role).map(|i| graph.node(i.value).name.clone()).collect()
}

fn zeros_like(tensor: &Tensor) -> Tensor {
    Tensor::new(tensor.dims.clone(), vec![0.0; tensor.data.len()])
}

fn add(to: &mut Tensor, from: &Tensor) {
    to.data.iter_mut().zip(&from.data).for_each(|(a, b)| *a += b);
}

/// A batch of random tokens; labels are the next tokens, documents of varying length with labels -1 at their ends.
pub fn data(model: &CheckedModel, seed: u64, vocab: u64) -> FxHashMap<String, Tensor> {
    let mut numbers = Numbers::new(seed);
    let (rows, seq) = (model.batch as usize, model.seq as usize);
    let mut named: FxHashMap<String, Vec<f64>> = FxHashMap::default();
    for _ in 0..rows {
        let text: Vec<f64> = (0..=seq).map(|_| (numbers.uniform() * vocab as f64).floor()).collect();
        let (mut document, mut position) = (0.0, 0.0);
        for t in 0..seq {
            let ends = t + 1 < seq && numbers.uniform() < 0.15;
            let packed = model.inputs.iter().any(|i| i == "documents");
            let label = if packed && ends { -1.0 } else { text[t + 1] };
            for (name, value) in
                [("tokens", text[t]), ("labels", label), ("documents", document), ("positions", position)]
            {
                named.entry(name.into()).or_default().push(value);
            }
            (document, position) = if packed && ends { (document + 1.0, 0.0) } else { (document, position + 1.0) };
        }
    }
    named.into_iter().map(|(name, values)| (name, Tensor::new([rows as u64, seq as u64], values))).collect()
}
