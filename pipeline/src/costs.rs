//! What work costs, exactly: whole ticks of any length of time.

use crate::{Item, Layout, Op, ScheduleError, Work};
use std::str::FromStr;

/// Time. How long a tick is, the caller knows; nothing here depends on it.
pub type Ticks = u64;

/// The costs of a pipeline's work, in ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Forward, by layer group.
    pub forward: Vec<Ticks>,
    /// Backward for the input, by layer group.
    pub input: Vec<Ticks>,
    /// Backward for the weights, by layer group.
    pub weight: Vec<Ticks>,
    /// The whole backward, by layer group: both halves, or less where they share work.
    pub whole: Vec<Ticks>,
    /// From one stage to another, between the end of work and the start of work that needs it.
    pub p2p: Ticks,
    /// A forward and a whole backward that run together; without it a pair costs the sum of its parts, less what it hides.
    pub pair: Option<Ticks>,
    /// What is hidden when a forward and a whole backward run together, by layer group: of two groups the smaller one. Empty: nothing.
    pub hidden: Vec<Ticks>,
    /// A tick is 10^−`decimals` of the unit that people write these costs in; messages say times in it.
    pub decimals: u32,
}

impl Costs {
    /// The same for all groups.
    pub fn equal(groups: u32, forward: Ticks, input: Ticks, weight: Ticks) -> Costs {
        let all = |cost| vec![cost; groups as usize];
        Costs {
            forward: all(forward),
            input: all(input),
            weight: all(weight),
            whole: all(input + weight),
            p2p: 0,
            pair: None,
            hidden: vec![],
            decimals: 0,
        }
    }

    /// By layer group, with a whole backward that costs what its halves do.
    pub fn halves(forward: Vec<Ticks>, input: Vec<Ticks>, weight: Vec<Ticks>) -> Costs {
        let whole = input.iter().zip(&weight).map(|(i, w)| i.saturating_add(*w)).collect();
        Costs { forward, input, weight, whole, p2p: 0, pair: None, hidden: vec![], decimals: 0 }
    }

    /// With a cost between stages.
    pub fn with_p2p(self, p2p: Ticks) -> Costs {
        Costs { p2p, ..self }
    }

    /// With a cost of pairs.
    pub fn with_pair(self, pair: Option<Ticks>) -> Costs {
        Costs { pair, ..self }
    }

    /// Of a forward and a whole backward of two groups as a pair: [`Costs::pair`], or the sum less [`Costs::hidden`].
    pub fn pair_of(&self, forward: u32, backward: u32) -> Ticks {
        let hidden = |group: u32| self.hidden.get(group as usize).copied().unwrap_or(0);
        let apart = self.forward[forward as usize] + self.whole[backward as usize];
        self.pair.unwrap_or(apart - hidden(forward).min(hidden(backward)))
    }

    /// Whether any pair can take less than its works one after the other.
    pub fn pairs_save(&self) -> bool {
        let backward = (0..self.whole.len()).map(|g| self.backward(g)).max().unwrap_or(0);
        let forward = self.forward.iter().max().copied().unwrap_or(0);
        match self.pair {
            Some(pair) => pair < forward + backward,
            None => self.hidden.iter().any(|hidden| *hidden > 0),
        }
    }

    /// Layer groups that have costs.
    pub fn groups(&self) -> u32 {
        self.forward.len() as u32
    }

    /// Of one work.
    pub fn of(&self, work: Work) -> Ticks {
        let group = work.group as usize;
        match work.op {
            Op::F => self.forward[group],
            Op::I => self.input[group],
            Op::W => self.weight[group],
            Op::B => self.whole[group],
        }
    }

    /// Of an item: a forward and a whole backward together cost [`Costs::pair_of`] their groups, anything else the sum of its works.
    pub fn of_item(&self, item: &Item) -> Ticks {
        match *item {
            Item::Pair(Work { op: Op::F, group: forward, .. }, Work { op: Op::B, group: backward, .. }) => {
                self.pair_of(forward, backward)
            }
            Item::Pair(first, second) => self.of(first) + self.of(second),
            Item::One(work) => self.of(work),
        }
    }

    /// With times in messages as people wrote them.
    pub fn with_decimals(self, decimals: u32) -> Costs {
        Costs { decimals, ..self }
    }

    /// That sums of these costs cannot overflow, that there is one for each group, and that a pair is neither shorter than its parts nor longer than any two.
    ///
    /// # Errors
    /// One of these does not hold.
    pub fn check(&self, layout: Layout) -> Result<(), ScheduleError> {
        let groups = layout.groups();
        for (name, costs) in [("F", &self.forward), ("I", &self.input), ("W", &self.weight), ("B", &self.whole)] {
            if costs.len() != groups as usize {
                return Err(ScheduleError::plain(format!("{} costs {name} for {groups} layer groups", costs.len())));
            }
        }
        if !self.hidden.is_empty() && self.hidden.len() != groups as usize {
            return Err(ScheduleError::plain(format!(
                "what pairs hide is given for {} of {groups} layer groups",
                self.hidden.len()
            )));
        }
        let sum = |costs: &[Ticks]| costs.iter().map(|c| u128::from(*c)).sum::<u128>();
        let once = sum(&self.forward)
            + (sum(&self.input) + sum(&self.weight)).max(sum(&self.whole))
            + 2 * u128::from(groups) * u128::from(self.p2p);
        let pairs = u128::from(groups) * u128::from(self.pair.unwrap_or(0));
        // Twice: bounds add heads and tails to the work of a stage.
        if 2 * (once + pairs) * u128::from(layout.size.micros) > u128::from(u64::MAX / 4) {
            return Err(ScheduleError::new(
                "these costs are too large to be added up",
                "give them in a larger unit of time",
            ));
        }
        let mut hidden = self.hidden.iter().zip(self.forward.iter().zip(&self.whole));
        if let Some((hidden, _)) = hidden.find(|(hidden, (forward, whole))| hidden > forward.min(whole)) {
            let hidden = shown(*hidden, self.decimals);
            return Err(ScheduleError::plain(format!("a pair hides {hidden}, more than one of its parts takes")));
        }
        self.pair.map_or(Ok(()), |pair| self.check_pair(pair))
    }

    fn check_pair(&self, pair: Ticks) -> Result<(), ScheduleError> {
        let most = |costs: &[Ticks]| costs.iter().max().copied().unwrap_or(0);
        let (forward, whole) = (most(&self.forward), most(&self.whole));
        let (least, most) = (forward.max(whole), forward + whole);
        let shown = |ticks| shown(ticks, self.decimals);
        let wrong = |what: String| {
            let hint = format!(
                "a pair takes as long as its longer part at least, F + I + W at most: {} to {} here",
                shown(least),
                shown(most)
            );
            Err(ScheduleError::new(format!("a pair of {} {what}", shown(pair)), hint))
        };
        match pair {
            short if short < least => wrong(format!("is shorter than one of its parts, which takes {}", shown(least))),
            long if long > most => {
                wrong(format!("is longer than its parts one after the other, which take {}", shown(most)))
            }
            _ => Ok(()),
        }
    }

    /// The least that goes backward through a layer group: as a whole, or in halves.
    pub fn backward(&self, group: usize) -> Ticks {
        self.whole[group].min(self.input[group].saturating_add(self.weight[group]))
    }

    /// The serial work of each stage: what it is busy for when nothing runs together.
    pub fn stage_work(&self, layout: Layout) -> Vec<Ticks> {
        let cost = |g: u32| self.forward[g as usize] + self.backward(g as usize);
        let mut work = vec![0; layout.size.stages as usize];
        let halves = [0, layout.size.micros / 2, layout.size.micros];
        for (from, to) in halves.into_iter().zip(halves.into_iter().skip(1)).filter(|(from, to)| from < to) {
            for group in 0..layout.groups() {
                work[layout.stage_of(group, from) as usize] += cost(group) * u64::from(to - from);
            }
        }
        work
    }
}

/// Ticks of 10^−`decimals` as a decimal number.
pub fn shown(ticks: Ticks, decimals: u32) -> String {
    let unit = 10u64.pow(decimals);
    let (whole, part) = (ticks / unit, ticks % unit);
    if part == 0 {
        return whole.to_string();
    }
    let part = format!("{part:0width$}", width = decimals as usize);
    format!("{whole}.{}", part.trim_end_matches('0'))
}

/// A decimal number as it is written: `12`, `0.25`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    digits: u64,
    decimals: u32,
}

/// Digits behind the point that a cost may have.
const MAX_DECIMALS: u32 = 9;
/// The largest that is written without its point.
const MOST: u64 = u64::MAX;

impl Decimal {
    /// Digits behind the point.
    pub fn decimals(self) -> u32 {
        self.decimals
    }

    /// In ticks of 10^−`decimals`; `None` when that is too large or when digits would be lost.
    pub fn ticks(self, decimals: u32) -> Option<Ticks> {
        10u64.checked_pow(decimals.checked_sub(self.decimals)?)?.checked_mul(self.digits)
    }
}

impl FromStr for Decimal {
    type Err = String;

    fn from_str(text: &str) -> Result<Decimal, String> {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(part) || text.ends_with('.') {
            return Err(format!(
                "`{text}` is no cost: it is a number like 12 or 0.25, not negative and without an exponent, of at most {MOST} without its point"
            ));
        }
        let part = part.trim_end_matches('0');
        let decimals = part.len() as u32;
        if decimals > MAX_DECIMALS {
            return Err(format!("`{text}` has more than {MAX_DECIMALS} digits behind the point"));
        }
        let digits = format!("{whole}{part}").parse();
        let digits =
            digits.map_err(|_| format!("`{text}` is too large a cost: without its point it is at most {MOST}"))?;
        Ok(Decimal { digits, decimals })
    }
}
