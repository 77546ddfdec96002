//! Cuts with the fastest slowest stage, by dynamic programming.

use super::{least, local, slowest};
use crate::{Layout, Ticks};

/// Prefix sums.
fn sums(totals: impl Iterator<Item = Ticks>) -> Vec<Ticks> {
    std::iter::once(0)
        .chain(totals.scan(0, |sum, t| {
            *sum += t;
            Some(*sum)
        }))
        .collect()
}

/// Each stage one run of layers, at least as many as it has chunks. `best[s][i]`: the slowest of `s` stages that have the first `i` layers. O(stages · layers²).
pub fn blocked(totals: &[Ticks], stages: usize, chunks: usize) -> Vec<usize> {
    let (n, sums) = (totals.len(), sums(totals.iter().copied()));
    let mut best = vec![Ticks::MAX; n + 1];
    best[0] = 0;
    let mut froms = vec![];
    for _ in 0..stages {
        let mut next = vec![(Ticks::MAX, 0); n + 1];
        for to in chunks..=n {
            let reached = |from: usize| (best[from].max(sums[to] - sums[from]), from);
            let all = (0..=to - chunks).filter(|from| best[*from] < Ticks::MAX).map(reached);
            next[to] = all.min().unwrap_or((Ticks::MAX, 0));
        }
        froms.push(next.iter().map(|(_, from)| *from).collect::<Vec<_>>());
        best = next.into_iter().map(|(value, _)| value).collect();
    }
    let mut end = n;
    let mut ends = vec![];
    for from in froms.iter().rev() {
        let start = from[end];
        // A stage's chunks: even, as far as whole layers go.
        let layers = end - start;
        ends.extend((1..=chunks).rev().map(|c| start + layers * c / chunks));
        end = start;
    }
    ends.reverse();
    ends
}

/// Two chunks in a V: the first chunks of stages take layers from the front, the second ones from the back.
pub fn wave(totals: &[Ticks], layout: Layout) -> Vec<usize> {
    let both =
        Both { first: sums(totals.iter().copied()), second: sums(totals.iter().rev().copied()), meet: Meet::Anywhere };
    let n = totals.len();
    let cut = |taken: Vec<(usize, usize)>| {
        let front = taken.iter().map(|(i, _)| *i);
        let back = taken.iter().rev().skip(1).map(|(_, j)| n - *j);
        front.chain(back).chain([n]).collect()
    };
    smallest(totals, layout, |limit| both.within(layout.size.stages as usize, limit).map(cut))
}

/// Two chunks in turn: the second chunks begin where the first ones end, at a layer that has to be found.
pub fn interleaved(totals: &[Ticks], layout: Layout) -> Vec<usize> {
    let (n, stages) = (totals.len(), layout.size.stages as usize);
    let within = |limit: Ticks| {
        (stages..=n - stages).find_map(|middle| {
            let (front, back) = totals.split_at(middle);
            let (first, second) = (sums(front.iter().copied()), sums(back.iter().copied()));
            let both = Both { first, second, meet: Meet::AtTheEnds };
            let taken = both.within(stages, limit)?;
            let second = taken.iter().map(|(_, j)| middle + *j).collect::<Vec<_>>();
            Some(taken.iter().map(|(i, _)| *i).chain(second).collect::<Vec<_>>())
        })
    };
    smallest(totals, layout, within)
}

/// The cut for the smallest limit that has one: bisection between what is least and a good cut.
fn smallest(totals: &[Ticks], layout: Layout, within: impl Fn(Ticks) -> Option<Vec<usize>>) -> Vec<usize> {
    let mut best = local::cut(totals, layout);
    let (mut low, mut high) = (least(totals, layout), slowest(totals, &best, layout));
    while low < high {
        let limit = low + (high - low) / 2;
        match within(limit) {
            Some(cut) => (best, high) = (cut, limit),
            None => low = limit + 1,
        }
    }
    best
}

/// Two ends from which stages take layers, one after the other: from each at least one.
struct Both {
    first: Vec<Ticks>,
    second: Vec<Ticks>,
    meet: Meet,
}

/// When nothing is left.
enum Meet {
    /// Both take from the same layers, one from each side.
    Anywhere,
    /// Each has layers of its own.
    AtTheEnds,
}

impl Both {
    /// How many the second end may have given when the first has given so many, and must have in the end.
    fn room(&self, first: usize) -> usize {
        match self.meet {
            Meet::Anywhere => self.second.len() - 1 - first,
            Meet::AtTheEnds => self.second.len() - 1,
        }
    }

    fn done(&self, first: usize, second: usize) -> bool {
        let all = match self.meet {
            Meet::Anywhere => true,
            Meet::AtTheEnds => first + 1 == self.first.len(),
        };
        all && second == self.room(first)
    }

    /// What has been taken behind each stage when none takes more than `limit`; `None` when that cannot be. `reach[s]` has all (i, j) that `s` stages
    /// can have taken.
    fn within(&self, stages: usize, limit: Ticks) -> Option<Vec<(usize, usize)>> {
        let width = self.second.len();
        let mut reach = vec![vec![false; self.first.len() * width]];
        reach[0][0] = true;
        for s in 0..stages {
            let next = self.step(&reach[s], limit);
            reach.push(next);
        }
        let last = reach.pop()?;
        let cells = (0..last.len()).filter(|c| last[*c]).map(|c| (c / width, c % width));
        let mut taken = vec![cells.into_iter().find(|(i, j)| self.done(*i, *j))?];
        for before in reach.iter().skip(1).rev() {
            let (i, j) = *taken.last()?;
            let leads = |&(a, b): &(usize, usize)| {
                a < i
                    && b < j
                    && before[a * width + b]
                    && self.first[i] - self.first[a] + self.second[j] - self.second[b] <= limit
            };
            taken.push((0..i).flat_map(|a| (0..j).map(move |b| (a, b))).find(leads)?);
        }
        taken.reverse();
        Some(taken)
    }

    fn step(&self, reach: &[bool], limit: Ticks) -> Vec<bool> {
        let width = self.second.len();
        // Where runs of reachable cells of a row begin and how many end, summed up at the end.
        let mut edges = vec![0i32; reach.len() + 1];
        for cell in (0..reach.len()).filter(|c| reach[*c]) {
            let (i, j) = (cell / width, cell % width);
            let mut to = width - 1;
            for next in i + 1..self.first.len() {
                let Some(left) = limit.checked_sub(self.first[next] - self.first[i]) else { break };
                while to > j && self.second[to] - self.second[j] > left {
                    to -= 1;
                }
                let to = to.min(self.room(next));
                if to > j {
                    edges[next * width + j + 1] += 1;
                    edges[next * width + to + 1] -= 1;
                }
            }
        }
        let open = edges.iter().scan(0, |open, edge| {
            *open += edge;
            Some(*open > 0)
        });
        open.take(reach.len()).collect()
    }
}
