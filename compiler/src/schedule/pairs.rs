//! Two works that the schedule pairs: their layers one by one in one program.
//!
//! ```text
//! F: receive · f1 · f2 · send        receive · receive · f1&b2 · f2&b1 · send · send
//! B: receive · b2 · b1 · send   ──►
//! ```
//!
//! Both are scheduled one after the other first. What is not a layer (messages, gathered parameters, summed gradients) stays before or behind the layer that it was before or behind.

use super::layers::Cx;
use super::phases::Scheduler;
use super::shared::Shared;
use super::timeline::{Bind, Entry};
use crate::overlap::Same;
use forebay_plan::Access;

impl Scheduler<'_> {
    /// Brings together the layers of two works, whose calls are those from `first` and from `second` on.
    pub(super) fn pair(&mut self, cx: &Cx, shared: &mut Shared, (first, second): (u32, u32)) {
        let numbered = |from: u32, calls: Vec<Entry>| (from..).zip(calls).collect::<Vec<_>>();
        let behind = numbered(second, shared.timeline.take(second));
        let before = numbered(first, shared.timeline.take(first));
        let mut moved = vec![0; before.len() + behind.len()];
        let mut works = [before.into_iter(), behind.into_iter()];
        loop {
            let mut layers = vec![];
            for work in &mut works {
                for (number, call) in work.by_ref() {
                    moved[(number - first) as usize] = shared.timeline.len();
                    if is_layer(cx, &call) && self.programs.is_heavy(call.program) {
                        layers.push((number, call));
                        break;
                    }
                    shared.timeline.put(call);
                }
            }
            let here = shared.timeline.len();
            layers.iter().for_each(|(number, _)| moved[(number - first) as usize] = here);
            match &layers[..] {
                [] => break,
                [(_, alone)] => shared.timeline.put(alone.clone()),
                [(_, a), (to, b), ..] => {
                    if !self.pair_calls(shared, (a, b)) {
                        shared.timeline.put(a.clone());
                        moved[(to - first) as usize] += 1;
                        shared.timeline.put(b.clone());
                    }
                }
            }
        }
        for span in shared.spans.values_mut() {
            for call in [&mut span.forward, &mut span.backward] {
                if *call >= first {
                    *call = moved[(*call - first) as usize];
                }
            }
        }
    }

    /// One call for two, if that is possible and worth it.
    fn pair_calls(&mut self, shared: &mut Shared, (a, b): (&Entry, &Entry)) -> bool {
        let (of_a, of_b) = (&a.slots[..a.slots.len() - 1], &b.slots[..b.slots.len() - 1]);
        let mut same: Vec<Same> = vec![];
        for (j, bind) in of_b.iter().enumerate() {
            let Some(i) = of_a.iter().position(|other| other == bind) else { continue };
            if self.programs.access(a.program, i) != Access::Read || self.programs.access(b.program, j) != Access::Read
            {
                same.push((i, j));
            }
        }
        let Some(program) = self.programs.pair((a.program, b.program), &same) else { return false };
        let rest = of_b.iter().enumerate().filter(|(j, _)| !same.iter().any(|s| s.1 == *j)).map(|(_, bind)| *bind);
        let slots: Vec<Bind> = of_a.iter().copied().chain(rest).collect();
        // Random numbers depend on the layer and micro-batch of a call; at most one of the two has them.
        let of = if self.programs.is_random(b.program) { b } else { a };
        shared.timeline.call(&program, of.layer, of.micro_batch, slots);
        a.keeps().iter().chain(b.keeps()).for_each(|&item| shared.timeline.keep(item));
        true
    }
}

/// Is it a layer's call, of one between the first (embedding) and the last (losses)?
pub(super) fn is_layer(cx: &Cx, call: &Entry) -> bool {
    is_between(cx, call.layer as usize)
}

/// Is a layer between the first and the last?
pub(super) fn is_between(cx: &Cx, layer: usize) -> bool {
    layer > 0 && layer + 1 < cx.sharded.model.layers.len()
}
