//! Good cuts for any placement: an even one, and moves of one layer across one boundary while they help.

use super::loads;
use crate::{Layout, Ticks};

/// A cut in which no move of one layer makes the loads more even.
pub fn cut(totals: &[Ticks], layout: Layout) -> Vec<usize> {
    let mut ends = even(totals, layout.groups() as usize);
    let mut value = unevenness(totals, &ends, layout);
    // Each step makes the value smaller; a step tries each boundary both ways.
    while let Some((better, next)) = neighbours(&ends)
        .map(|next| (unevenness(totals, &next, layout), next))
        .min_by_key(|(value, _)| *value)
        .filter(|(next, _)| *next < value)
    {
        (value, ends) = (better, next);
    }
    ends
}

/// The largest load first, then how uneven all are.
fn unevenness(totals: &[Ticks], ends: &[usize], layout: Layout) -> (Ticks, u128) {
    let loads = loads(totals, ends, layout);
    let squares = loads.iter().map(|l| u128::from(l >> 8).pow(2)).sum();
    (loads.into_iter().max().unwrap_or(0), squares)
}

/// Boundaries where an even share of the cost is reached, at least one layer apart.
pub fn even(totals: &[Ticks], groups: usize) -> Vec<usize> {
    let all: u128 = totals.iter().map(|t| u128::from(*t)).sum();
    let (mut sum, mut end) = (0u128, 0);
    let mut ends = Vec::with_capacity(groups);
    for group in 1..=groups {
        let goal = all * group as u128 / groups as u128;
        let most = totals.len() - (groups - group);
        sum += u128::from(totals[end]);
        end += 1;
        while end < most && (group == groups || sum + u128::from(totals[end]) / 2 < goal) {
            sum += u128::from(totals[end]);
            end += 1;
        }
        ends.push(end);
    }
    ends
}

/// All cuts in which one layer is on the other side of a boundary; no group is empty.
pub fn neighbours(ends: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<'_> {
    (0..ends.len() - 1).flat_map(move |at| {
        let start = if at == 0 { 0 } else { ends[at - 1] };
        let fewer = (ends[at] - 1 > start).then(|| ends[at] - 1);
        let more = (ends[at] + 1 < ends[at + 1]).then(|| ends[at] + 1);
        [fewer, more].into_iter().flatten().map(move |end| {
            let mut next = ends.to_vec();
            next[at] = end;
            next
        })
    })
}
