//! Choosing one term for each class that is needed: the cheapest graph, in which shared work counts once.
//!
//! First greedily: each class takes the term whose whole sub-graph is the cheapest. Then exactly, by branch and bound over the classes that have a
//! choice, until it is proven that nothing is cheaper or the limit of branches is met.

use super::Options;
use super::term::{Egraph, Key, Term};
use egg::Id;
use forebay_ir::{Graph, Node, Op, Type, ValueId};
use rustc_hash::FxHashMap;

/// A term for each class that is needed.
pub(super) struct Choice {
    terms: FxHashMap<Id, Term>,
    /// The estimated seconds of all chosen terms.
    pub cost: f64,
    /// No choice can cost less.
    pub bound: f64,
    /// Was it proven that nothing is cheaper?
    pub exact: bool,
}

impl Choice {
    /// The class's term.
    pub fn term(&self, class: Id) -> &Term {
        &self.terms[&class]
    }

    /// Is the class needed?
    pub fn needs(&self, class: Id) -> bool {
        self.terms.contains_key(&class)
    }
}

/// What a term costs however cheap it is, so that no graph of terms goes in a circle; a fused op half of it, so that it is taken among equals.
const TRIFLE: f64 = 1e-12;

/// The terms of all classes with their costs, under small numbers.
struct Problem {
    ids: Vec<Id>,
    options: Vec<Vec<Candidate>>,
    roots: Vec<usize>,
}

#[derive(Clone)]
struct Candidate {
    term: Term,
    needs: Vec<usize>,
    cost: f64,
}

pub(super) fn extract(egraph: &Egraph, graph: &Graph, classes: &[Id], options: &Options) -> Choice {
    let mut problem = Problem::new(egraph, graph, classes, options);
    problem.prune();
    let greedy = problem.greedy();
    let (best, cost) = problem.needed(&greedy).expect("greedy choices do not go in a circle");
    let mut search =
        Search { problem: &problem, best: best.clone(), cost, branches: options.branches, cheapest: vec![] };
    search.cheapest = problem.options.iter().map(|o| o.iter().map(|c| c.cost).fold(f64::INFINITY, f64::min)).collect();
    let bound = search.bound_at_root();
    let exact = search.run();
    let bound = if exact { search.cost } else { bound };
    let terms = search.best.iter().map(|&(class, i)| (problem.ids[class], problem.options[class][i].term.clone()));
    Choice { terms: terms.collect(), cost: search.cost, bound, exact }
}

/// Each term of a value's class, with the cheapest of everything below; terms that stand on themselves are left out.
pub(super) fn each(egraph: &Egraph, graph: &Graph, classes: &[Id], value: ValueId, options: &Options) -> Vec<Choice> {
    let mut problem = Problem::new(egraph, graph, classes, options);
    let class = egraph.find(classes[value.index()]);
    let class = problem.ids.iter().position(|&c| c == class).expect("the value has a class");
    let mut choices = vec![];
    for candidate in problem.options[class].clone() {
        problem.options[class] = vec![candidate];
        let Some((list, cost)) = problem.needed(&problem.greedy()) else { continue };
        let terms = list.iter().map(|&(class, i)| (problem.ids[class], problem.options[class][i].term.clone()));
        choices.push(Choice { terms: terms.collect(), cost, bound: cost, exact: false });
    }
    choices
}

impl Problem {
    fn new(egraph: &Egraph, graph: &Graph, classes: &[Id], options: &Options) -> Problem {
        let mut ids: Vec<Id> = egraph.classes().map(|c| c.id).collect();
        ids.sort_unstable();
        let number: FxHashMap<Id, usize> = ids.iter().enumerate().map(|(i, &c)| (c, i)).collect();
        let mut world = egraph.analysis.clone();
        let mut choices: Vec<Vec<Candidate>> = Vec::with_capacity(ids.len());
        for &id in &ids {
            let mut terms: Vec<&Term> = egraph[id].nodes.iter().collect();
            terms.sort();
            let mut list = vec![];
            for term in terms {
                let mut needs: Vec<usize> = term.args.iter().map(|&a| number[&egraph.find(a)]).collect();
                needs.sort_unstable();
                needs.dedup();
                let types: Vec<Type> = term.args.iter().map(|&a| egraph[a].data.ty.clone()).collect();
                let key = world.keys[term.head as usize].clone();
                let result = egraph[id].data.ty.clone();
                let cost = world.with_operands(&key, &types, |scratch, operands| {
                    seconds(scratch, operands, &key, &result, options)
                });
                let trifle = if matches!(key.op, Op::Fused(_)) { TRIFLE / 2.0 } else { TRIFLE };
                list.push(Candidate { term: term.clone(), needs, cost: cost + trifle });
            }
            choices.push(list);
        }
        let outputs = graph.outputs.iter().map(|o| o.value).chain(graph.offsets.iter().map(|o| o.1));
        let mut roots: Vec<usize> = outputs.map(|v| number[&egraph.find(classes[v.index()])]).collect();
        roots.sort_unstable();
        roots.dedup();
        Problem { ids, options: choices, roots }
    }

    /// For each class the classes that every way to make it needs, itself included.
    fn musts(&self) -> Vec<Vec<u64>> {
        let n = self.ids.len();
        let words = n.div_ceil(64);
        // From everything downwards: what is left at the end is needed whatever is chosen.
        let mut musts = vec![vec![u64::MAX; words]; n];
        loop {
            let mut changed = false;
            for class in 0..n {
                let mut common = vec![u64::MAX; words];
                for candidate in &self.options[class] {
                    let below = union(&candidate.needs, &musts, words);
                    common.iter_mut().zip(&below).for_each(|(c, b)| *c &= b);
                }
                common[class / 64] |= 1 << (class % 64);
                if common != musts[class] {
                    musts[class] = common;
                    changed = true;
                }
            }
            if !changed {
                return musts;
            }
        }
    }

    /// Drops candidates that cost at least as much as another one, and need all that it needs in any case.
    fn prune(&mut self) {
        let musts = self.musts();
        let words = self.ids.len().div_ceil(64);
        for class in 0..self.ids.len() {
            let below: Vec<Vec<u64>> = self.options[class].iter().map(|c| union(&c.needs, &musts, words)).collect();
            let list = std::mem::take(&mut self.options[class]);
            let has = |set: &[u64], c: usize| set[c / 64] >> (c % 64) & 1 == 1;
            let worse = |a: usize, b: usize| {
                let dearer = (list[a].cost, a) > (list[b].cost, b);
                // What needs the class itself is no way to make it.
                a != b
                    && (has(&below[a], class) || dearer && list[b].needs.iter().all(|&c| has(&below[a], c)))
                    && !has(&below[b], class)
            };
            let keep: Vec<bool> = (0..list.len()).map(|a| !(0..list.len()).any(|b| worse(a, b))).collect();
            self.options[class] = list.iter().zip(keep).filter(|(_, k)| *k).map(|(c, _)| c.clone()).collect();
        }
    }

    /// For each class the candidate whose sub-graph is the cheapest, if it can be had at all.
    fn greedy(&self) -> Vec<Option<usize>> {
        let n = self.ids.len();
        let mut chosen: Vec<Option<usize>> = vec![None; n];
        let mut totals = vec![f64::INFINITY; n];
        let mut below: Vec<Vec<u64>> = vec![vec![]; n];
        let mut own = vec![0.0; n];
        let words = n.div_ceil(64);
        loop {
            let mut changed = false;
            for class in 0..n {
                for (i, candidate) in self.options[class].iter().enumerate() {
                    let known = candidate.needs.iter().all(|&c| chosen[c].is_some());
                    let has = |set: &[u64], c: usize| set[c / 64] >> (c % 64) & 1 == 1;
                    if !known || candidate.needs.iter().any(|&c| c == class || has(&below[c], class)) {
                        continue;
                    }
                    let mut set = vec![0_u64; words];
                    for &c in &candidate.needs {
                        set.iter_mut().zip(&below[c]).for_each(|(s, b)| *s |= b);
                    }
                    let others: f64 = bits(&set).map(|c| own[c]).sum();
                    let total = others + candidate.cost;
                    if total < totals[class] * (1.0 - 1e-12) {
                        set[class / 64] |= 1 << (class % 64);
                        (chosen[class], totals[class], own[class], below[class]) =
                            (Some(i), total, candidate.cost, set);
                        changed = true;
                    }
                }
            }
            if !changed {
                return chosen;
            }
        }
    }

    /// The classes that a choice needs with their candidates, and what they cost; `None` when it goes in a circle.
    fn needed(&self, chosen: &[Option<usize>]) -> Option<(Vec<(usize, usize)>, f64)> {
        let mut state = vec![0_u8; self.ids.len()];
        let (mut list, mut cost) = (vec![], 0.0);
        let mut stack: Vec<(usize, bool)> = self.roots.iter().map(|&r| (r, false)).collect();
        while let Some((class, done)) = stack.pop() {
            if done {
                state[class] = 2;
                continue;
            }
            match state[class] {
                2 => continue,
                1 => return None,
                _ => {}
            }
            state[class] = 1;
            stack.push((class, true));
            let i = chosen[class]?;
            let candidate = &self.options[class][i];
            list.push((class, i));
            cost += candidate.cost;
            for &c in &candidate.needs {
                match state[c] {
                    0 => stack.push((c, false)),
                    1 => return None,
                    _ => {}
                }
            }
        }
        Some((list, cost))
    }
}

/// What a list of classes needs together.
fn union(classes: &[usize], sets: &[Vec<u64>], words: usize) -> Vec<u64> {
    let mut all = vec![0_u64; words];
    for &class in classes {
        all.iter_mut().zip(&sets[class]).for_each(|(a, s)| *a |= s);
    }
    all
}

fn bits(set: &[u64]) -> impl Iterator<Item = usize> + '_ {
    set.iter().enumerate().flat_map(|(word, &bits)| {
        let mut bits = bits;
        std::iter::from_fn(move || {
            (bits != 0).then(|| {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                word * 64 + bit
            })
        })
    })
}

fn seconds(scratch: &Graph, operands: &[ValueId], key: &Key, result: &Type, options: &Options) -> f64 {
    if matches!(key.op, Op::Input | Op::Const(_) | Op::Iota(_)) {
        return 0.0;
    }
    let mut graph = scratch.clone();
    let ty = Type::new(result.dtype, super::term::behind_parents(scratch, &result.axes));
    graph.nodes.push(Node { op: key.op.clone(), operands: operands.to_vec(), ty, name: String::new() });
    options.profile.seconds(&graph, ValueId(graph.nodes.len() as u32 - 1))
}

/// Branch and bound.
struct Search<'p> {
    problem: &'p Problem,
    best: Vec<(usize, usize)>,
    cost: f64,
    /// Branches left.
    branches: usize,
    /// For each class the cost of its cheapest candidate.
    cheapest: Vec<f64>,
}

impl Search<'_> {
    /// What the roots, and all that has no choice, cost at least.
    fn bound_at_root(&self) -> f64 {
        let musts = self.problem.musts();
        let all = union(&self.problem.roots, &musts, self.problem.ids.len().div_ceil(64));
        bits(&all).filter(|&c| c < self.cheapest.len()).map(|c| self.cheapest[c]).sum()
    }

    /// Returns whether the search came to its end.
    fn run(&mut self) -> bool {
        let mut chosen: Vec<Option<usize>> = vec![None; self.problem.ids.len()];
        let mut waiting = vec![];
        let mut wanted = vec![false; self.problem.ids.len()];
        let mut bound = 0.0;
        for &root in &self.problem.roots {
            wanted[root] = true;
            waiting.push(root);
            bound += self.cheapest[root];
        }
        self.branch(&mut chosen, &mut wanted, waiting, bound)
    }

    /// `bound`: the decided classes' costs and the cheapest candidates of the waiting ones.
    fn branch(
        &mut self,
        chosen: &mut Vec<Option<usize>>,
        wanted: &mut Vec<bool>,
        mut waiting: Vec<usize>,
        mut bound: f64,
    ) -> bool {
        // What has no choice is decided at once.
        let mut decided = vec![];
        let mut added = vec![];
        let mut complete = true;
        while let Some(at) = waiting.iter().rposition(|&c| self.problem.options[c].len() == 1) {
            let class = waiting.swap_remove(at);
            chosen[class] = Some(0);
            decided.push(class);
            for &c in &self.problem.options[class][0].needs {
                if !wanted[c] {
                    wanted[c] = true;
                    added.push(c);
                    waiting.push(c);
                    bound += self.cheapest[c];
                }
            }
        }
        if bound < self.cost * (1.0 - 1e-9) {
            match waiting.pop() {
                None => {
                    if let Some((list, cost)) = self.problem.needed(chosen)
                        && cost < self.cost
                    {
                        (self.best, self.cost) = (list, cost);
                    }
                }
                Some(class) => {
                    let mut order: Vec<usize> = (0..self.problem.options[class].len()).collect();
                    order.sort_by(|&a, &b| {
                        let cost = |i: usize| self.problem.options[class][i].cost;
                        cost(a).total_cmp(&cost(b)).then(a.cmp(&b))
                    });
                    for i in order {
                        if self.branches == 0 {
                            complete = false;
                            break;
                        }
                        self.branches -= 1;
                        let candidate = self.problem.options[class][i].clone();
                        let mut bound = bound - self.cheapest[class] + candidate.cost;
                        let mut waiting = waiting.clone();
                        let mut new = vec![];
                        for &c in &candidate.needs {
                            if !wanted[c] {
                                wanted[c] = true;
                                new.push(c);
                                waiting.push(c);
                                bound += self.cheapest[c];
                            }
                        }
                        chosen[class] = Some(i);
                        complete &= self.branch(chosen, wanted, waiting, bound);
                        chosen[class] = None;
                        new.iter().for_each(|&c| wanted[c] = false);
                    }
                }
            }
        }
        decided.iter().for_each(|&c| chosen[c] = None);
        added.iter().for_each(|&c| wanted[c] = false);
        complete
    }
}
