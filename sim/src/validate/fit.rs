//! Fits the calibrated numbers of clusters and frameworks to measured runs: plans are compiled once, so that a run costs milliseconds for each trial.
//!
//! Steps of Gauss and Newton ([`super::newton`]): numbers trade against each other (a faster product against slower elementwise work), and moving one of them at a time gets stuck where two would have
//! to move. What is minimised is the sum over systems of e / (1 + 2 e), e = |ln (predicted / measured)|, the mean of a system's runs times their root: many runs say more than few, but not as much
//! more as there are more of them, since what a system's runs have in common they have but once. A run that is wrong for reasons of its own pulls no harder than e = 1/2. To that comes what a number costs for being away from where it began ([`Problem::away`]): runs that say little about it leave it there, instead of carrying it to what cannot be.

use super::cases::Case;
use super::newton::{self, Bounds, Problem};
use super::summary::quantile;
use crate::framework::Framework;
use crate::threads::each;
use forebay_cost::Cluster;
use forebay_cost::cluster::{Calibrated, NonNegative, Share};
use indexmap::IndexMap;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A number that is fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    /// Of a cluster: which, and its place in [`CALIBRATED`].
    Cluster(usize, usize),
    /// Of a framework: which, and its place in [`PROFILE`].
    Framework(usize, usize),
}

impl Number {
    /// Does a case depend on it?
    fn is_of(self, case: &Case) -> bool {
        match self {
            Number::Cluster(c, _) => case.cluster == c,
            Number::Framework(f, _) => case.framework == Some(f),
        }
    }
}

/// Keys of `[calibrated]`, with the least and the largest value that makes sense.
const CALIBRATED: [(&str, f64, f64); 8] = [
    ("product_efficiency", 0.3, 0.95),
    ("product_depth", 16.0, 1024.0),
    ("attention_efficiency", 0.15, 0.9),
    ("memory_efficiency", 0.4, 0.95),
    ("kernel_us", 1.0, 12.0),
    ("link_efficiency", 0.3, 0.95),
    ("network_efficiency", 0.3, 0.98),
    ("overlap_slowdown", 0.05, 1.0),
];
/// Fitted keys of a framework.
const PROFILE: [(&str, f64, f64); 3] =
    [("dispatch_us", 1.0, 200.0), ("vector_passes", 1.0, 5.0), ("collective_us", 1.0, 1000.0)];

/// A fitted number, before and after.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Cluster or framework.
    pub of: String,
    /// Its key.
    pub key: &'static str,
    /// Before.
    pub before: f64,
    /// After.
    pub after: f64,
}

/// A cluster or framework with fewer runs than numbers that are fitted to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Few {
    /// Cluster or framework.
    pub of: String,
    /// Numbers of it that were fitted.
    pub numbers: usize,
    /// Runs with a measured time.
    pub runs: usize,
}

/// What a fit came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Median error before.
    pub before: f64,
    /// Median error after.
    pub after: f64,
    /// The numbers that changed.
    pub changes: Vec<Change>,
    /// Where there are fewer runs than numbers.
    pub few: Vec<Few>,
    /// For systems on devices that other systems ran on too: what their error is when the device's numbers have not seen them.
    pub left_out: IndexMap<String, LeftOut>,
}

/// Median errors of a system on a device, for numbers of the device that have seen more and less of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LeftOut {
    /// With the numbers that the fit ended with.
    pub kept: f64,
    /// With numbers fitted to every system on the device, this one too, from where [`Self::others`] begins: what that differs from is what the system says, and nothing else.
    pub all: f64,
    /// With numbers fitted to the others alone.
    pub others: f64,
}

impl Fit {
    /// Medians over all systems that were left out once. None where every device has one system.
    pub fn left_out_medians(&self) -> Option<LeftOut> {
        let of = |place: fn(&LeftOut) -> f64| quantile(&self.left_out.values().map(place).collect::<Vec<_>>(), 0.5);
        (!self.left_out.is_empty()).then(|| LeftOut {
            kept: of(|l| l.kept),
            all: of(|l| l.all),
            others: of(|l| l.others),
        })
    }
}

/// Numbers and cases.
struct Fitter<'a> {
    cases: &'a [Case],
    clusters: Vec<Cluster>,
    frameworks: Vec<Framework>,
    threads: usize,
}

/// How far a fit goes.
#[derive(Clone, Copy)]
struct Steps {
    /// At the most.
    rounds: usize,
    /// What being away from where it begins costs ([`Problem::away`]).
    away: f64,
}

/// Fits in so many rounds. Returns clusters and frameworks with other numbers, and what was changed.
pub fn fit(
    cases: &[Case],
    clusters: &[Cluster],
    frameworks: &[Framework],
    rounds: usize,
    threads: usize,
) -> (Vec<Cluster>, Vec<Framework>, Fit) {
    let mut fitter = Fitter { cases, clusters: clusters.to_vec(), frameworks: frameworks.to_vec(), threads };
    let numbers = fitter.numbers();
    let everything = |_: &Case| true;
    let before = fitter.median(&everything);
    let first: Vec<f64> = numbers.iter().map(|n| fitter.get(*n)).collect();
    fitter.descend(&numbers, Steps { rounds, away: AWAY }, &everything);
    let changes = numbers.iter().zip(first).filter_map(|(&number, before)| {
        let after = fitter.get(number);
        let (of, key) = fitter.name(number);
        (after != before).then(|| Change { of: of.to_string(), key, before, after })
    });
    let changes = changes.collect();
    let after = fitter.median(&everything);
    let left_out = fitter.leave_one_out(rounds);
    let fit = Fit { before, after, changes, few: fitter.few(&numbers), left_out };
    (fitter.clusters, fitter.frameworks, fit)
}

impl Fitter<'_> {
    /// The numbers that some case depends on. Host time for collectives is fitted where a profile has any.
    fn numbers(&self) -> Vec<Number> {
        let clusters = (0..self.clusters.len()).filter(|&c| self.cases.iter().any(|case| case.cluster == c));
        let frameworks =
            (0..self.frameworks.len()).filter(|&f| self.cases.iter().any(|case| case.framework == Some(f)));
        let of_clusters = clusters.flat_map(|c| (0..CALIBRATED.len()).map(move |k| Number::Cluster(c, k)));
        let of_frameworks = frameworks.flat_map(|f| (0..PROFILE.len()).map(move |k| Number::Framework(f, k)));
        of_clusters.chain(of_frameworks).filter(|&n| self.get(n) > 0.0).collect()
    }

    fn name(&self, number: Number) -> (&str, &'static str) {
        match number {
            Number::Cluster(c, k) => (&self.clusters[c].name, CALIBRATED[k].0),
            Number::Framework(f, k) => (&self.frameworks[f].name, PROFILE[k].0),
        }
    }

    /// What is fitted to fewer runs than it has numbers.
    fn few(&self, numbers: &[Number]) -> Vec<Few> {
        let mut of: IndexMap<&str, Few> = IndexMap::new();
        for &number in numbers {
            let (name, _) = self.name(number);
            let runs = self.cases.iter().filter(|case| case.measured_s.is_some() && number.is_of(case)).count();
            let few = of.entry(name).or_insert_with(|| Few { of: name.to_string(), numbers: 0, runs });
            few.numbers += 1;
        }
        of.into_values().filter(|few| few.runs < few.numbers).collect()
    }

    fn get(&self, number: Number) -> f64 {
        match number {
            Number::Cluster(c, k) => calibrated(&self.clusters[c].calibrated)[k],
            Number::Framework(f, k) => {
                let f = &self.frameworks[f];
                [f.dispatch_us, f.vector_passes, f.collective_us][k]
            }
        }
    }

    fn set(&mut self, number: Number, value: f64) {
        match number {
            Number::Cluster(c, k) => set_calibrated(&mut self.clusters[c].calibrated, k, value),
            Number::Framework(f, k) => {
                let f = &mut self.frameworks[f];
                *[&mut f.dispatch_us, &mut f.vector_passes, &mut f.collective_us][k] = value;
            }
        }
    }

    /// ln (predicted / measured) of cases, by their numbers; none where nothing is measured or predicted.
    fn errors(&self, of: &[usize]) -> Vec<Option<f64>> {
        let error = |&case: &usize| {
            let case = &self.cases[case];
            let predicted = case.step_time(&self.clusters, &self.frameworks).ok()?;
            Some((predicted / case.measured_s?).ln()).filter(|e| e.is_finite())
        };
        each(of, self.threads, error)
    }

    /// The cases that a condition chooses.
    fn chosen(&self, of: &dyn Fn(&Case) -> bool) -> Vec<usize> {
        let is_so = |n: &usize| self.cases[*n].measured_s.is_some() && of(&self.cases[*n]);
        (0..self.cases.len()).filter(is_so).collect()
    }

    fn median(&self, of: &dyn Fn(&Case) -> bool) -> f64 {
        let errors: Vec<f64> = self.errors(&self.chosen(of)).into_iter().flatten().map(|e| e.exp_m1().abs()).collect();
        quantile(&errors, 0.5)
    }

    /// Moves numbers, in so many steps, towards what the cases that a condition chooses say.
    fn descend(&mut self, numbers: &[Number], steps: Steps, of: &dyn Fn(&Case) -> bool) {
        let cases = self.chosen(of);
        let mut systems: IndexMap<&str, f64> = IndexMap::new();
        cases.iter().for_each(|&n| *systems.entry(&self.cases[n].run.system).or_default() += 1.0);
        let weight = |&n: &usize| 1.0 / (systems.len() as f64 * systems[self.cases[n].run.system.as_str()].sqrt());
        let weights: Vec<f64> = cases.iter().map(weight).collect();
        let touched = |number: &Number| {
            let is_of = |at: &usize| number.is_of(&self.cases[cases[*at]]);
            (0..cases.len()).filter(is_of).collect()
        };
        let touched = numbers.iter().map(touched).collect();
        let bounds = |number: &Number| {
            let (_, least, most) = match *number {
                Number::Cluster(_, k) => CALIBRATED[k],
                Number::Framework(_, k) => PROFILE[k],
            };
            Bounds { start: self.get(*number), least, most }
        };
        let problem = Problem { weights, touched, bounds: numbers.iter().map(bounds).collect(), away: steps.away };
        let found = newton::minimised(&problem, steps.rounds, |values, of| {
            numbers.iter().zip(values).for_each(|(&number, &value)| self.set(number, value));
            self.errors(&of.iter().map(|&at| cases[at]).collect::<Vec<_>>())
        });
        for ((&number, bounds), value) in numbers.iter().zip(&problem.bounds).zip(found) {
            // What the runs say nothing of does not change by rounding.
            let moved = (value / bounds.start).ln().abs() > LEAST_MOVE;
            self.set(number, if moved { value } else { bounds.start });
        }
    }

    /// For each system on a device that others ran on as well: its median error, and the same when the device's numbers are fitted anew to all of them, and to the others.
    fn leave_one_out(&mut self, rounds: usize) -> IndexMap<String, LeftOut> {
        let mut systems: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
        for case in self.cases.iter().filter(|case| case.measured_s.is_some()) {
            systems.entry(case.cluster).or_default().insert(&case.run.system);
        }
        let mut left_out = IndexMap::new();
        for (c, systems) in systems.into_iter().filter(|(_, systems)| systems.len() > 1) {
            let is_of = |case: &Case, system: &str| case.cluster == c && case.run.system == system;
            let median = |fitter: &Self, system: &str| fitter.median(&|case| is_of(case, system));
            let medians = |fitter: &Self| systems.iter().map(|system| median(fitter, system)).collect::<Vec<_>>();
            let fitted = self.clusters[c].calibrated.clone();
            let kept = medians(self);
            self.fit_anew(c, rounds, &|case| case.cluster == c);
            let all = medians(self);
            for (at, system) in systems.iter().enumerate() {
                self.fit_anew(c, rounds, &|case| case.cluster == c && !is_of(case, system));
                let of = LeftOut { kept: kept[at], all: all[at], others: median(self, system) };
                left_out.insert(format!("{system} on {}", self.clusters[c].name), of);
            }
            self.clusters[c].calibrated = fitted;
        }
        left_out
    }

    /// Fits a device's numbers to chosen runs from numbers that are fitted to no run: from its own they would remember those that are left out.
    fn fit_anew(&mut self, cluster: usize, rounds: usize, of: &dyn Fn(&Case) -> bool) {
        for (k, value) in NEUTRAL.into_iter().enumerate() {
            set_calibrated(&mut self.clusters[cluster].calibrated, k, value);
        }
        let numbers: Vec<Number> = (0..CALIBRATED.len()).map(|k| Number::Cluster(cluster, k)).collect();
        self.descend(&numbers, Steps { rounds: rounds.max(LEAST), away: AWAY_ANEW }, of);
    }
}

/// What being away from the files' numbers costs ([`Problem::away`]).
const AWAY: f64 = 0.05;
/// The same of fits that begin anew. With it systems that are left out are predicted best: their medians have a median of 6.4 %, with 0.05 of 7.2 and with 0.6 of 6.6.
const AWAY_ANEW: f64 = 0.2;
/// Numbers that would move by less, in logarithms, stay where they are.
const LEAST_MOVE: f64 = 1e-3;
/// Rounds at the least of fits that leave a system out: they begin far from where they end.
const LEAST: usize = 8;
/// Where fits begin that may not know the fitted numbers, in the order of [`CALIBRATED`]: what the kernels of an H100 come to that was measured (`cost/tests/kernels_h100.csv`: a large product under load,
/// attention at a rate as much below its bursts, AdamW and copies, the smallest kernels), and guesses: what a tile's start costs, links, networks, and the slowdown of overlapped work.
const NEUTRAL: [f64; CALIBRATED.len()] = [0.7, 128.0, 0.59, 0.85, 2.2, 0.8, 0.8, 0.25];

fn calibrated(of: &Calibrated) -> [f64; CALIBRATED.len()] {
    [
        of.product_efficiency.0,
        of.product_depth.0,
        of.attention_efficiency.0,
        of.memory_efficiency.0,
        of.kernel_us.0,
        of.link_efficiency.0,
        of.network_efficiency.0,
        of.overlap_slowdown.0,
    ]
}

fn set_calibrated(of: &mut Calibrated, number: usize, value: f64) {
    match number {
        0 => of.product_efficiency = Share(value),
        1 => of.product_depth = NonNegative(value),
        2 => of.attention_efficiency = Share(value),
        3 => of.memory_efficiency = Share(value),
        4 => of.kernel_us = NonNegative(value),
        5 => of.link_efficiency = Share(value),
        6 => of.network_efficiency = Share(value),
        _ => of.overlap_slowdown = NonNegative(value),
    }
}

/// What the first line of a file with estimates says, and what it says once they are fitted.
const ESTIMATE: &str = "[calibrated] is an estimate: no run of this device was used";
const FITTED: &str = "[calibrated] is fitted";

/// The text of a cluster file with the calibrated numbers that have changed, which are no estimates any more; all else stays as it is.
pub fn rewritten(text: &str, was: &Cluster, now: &Cluster) -> String {
    let (before, values) = (calibrated(&was.calibrated), calibrated(&now.calibrated));
    let estimated =
        |line: &&str| before != values && line.split_once('=').is_some_and(|(key, _)| key.trim() == "estimated");
    let line = |line: &str| {
        let key = line.split_once('=').map_or("", |(key, _)| key.trim());
        let place = CALIBRATED.iter().position(|(name, ..)| *name == key).filter(|at| before[*at] != values[*at]);
        place.map_or(line.to_string(), |place| {
            let remark = line.find('#').map_or(String::new(), |at| format!("  {}", &line[at..]));
            format!("{key} = {:.4}{remark}", values[place])
        })
    };
    let told = |line: String| if before == values { line } else { line.replace(ESTIMATE, FITTED) };
    text.lines().filter(|l| !estimated(l)).map(|l| told(line(l)) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::known;
    use crate::validate::runs;
    use forebay_cost::known::clusters;

    /// Numbers that were made worse come back, and what has fewer runs than numbers is told.
    #[test]
    fn a_fit_finds_what_was_changed() {
        let read = runs::read(include_str!("../../tests/published.csv")).expect("a table").runs;
        let (mut clusters, frameworks) = (clusters(), known());
        let cases: Vec<Case> =
            read.iter().take(2).map(|run| Case::new(run, &clusters, &frameworks).expect("a case")).collect();
        let at = cases[0].cluster;
        clusters[at].calibrated.product_efficiency = Share(0.45);
        let (fitted, _, fit) = fit(&cases, &clusters, &frameworks, 8, 1);
        assert!(fit.before > 0.2 && fit.after < 0.1, "{} before, {} after", fit.before, fit.after);
        assert!(fitted[at].calibrated.product_efficiency.0 > 0.55);
        // Two runs cannot tell eight numbers of a device.
        assert!(fit.few.iter().any(|few| (few.numbers, few.runs) == (8, 2)), "{:?}", fit.few);
        assert!(fit.changes.iter().any(|c| c.key == "product_efficiency" && c.before == 0.45));
    }

    /// Systems on one device are left out in turn: both fits begin alike, so that they differ by the system alone, and the device keeps the numbers that it had.
    #[test]
    fn systems_are_left_out_in_turn() {
        let tables = [include_str!("../../tests/steps_h100.csv"), include_str!("../../tests/published_crowded.csv")];
        let runs = tables.map(|text| runs::read(text).expect("a table").runs);
        let runs: Vec<runs::Run> = runs.iter().flat_map(|runs| &runs[..2]).cloned().collect();
        let (clusters, frameworks) = (clusters(), known());
        let case = |run: &runs::Run| Case::new(run, &clusters, &frameworks).expect("a case");
        let cases: Vec<Case> = runs.iter().map(case).collect();
        let (after, _, fit) = fit(&cases, &clusters, &frameworks, 0, 1);
        assert_eq!(after, clusters);
        assert_eq!(fit.left_out.len(), 2, "{:?}", fit.left_out.keys());
        for (system, of) in &fit.left_out {
            let is_of = |case: &&Case| system.starts_with(&case.run.system);
            let error = |case: &Case| {
                let predicted = case.step_time(&clusters, &frameworks).expect("a time");
                (predicted / case.measured_s.expect("it is measured") - 1.0).abs()
            };
            let errors: Vec<f64> = cases.iter().filter(is_of).map(error).collect();
            assert!((of.kept - quantile(&errors, 0.5)).abs() < 1e-9, "{system}: {of:?}, {errors:?}");
            assert!(of.all < of.others && of.all != of.kept, "{system}: {of:?}");
        }
        assert_eq!(
            fit.left_out_medians().map(|of| of.kept),
            Some(quantile(&fit.left_out.values().map(|of| of.kept).collect::<Vec<_>>(), 0.5))
        );
    }

    /// One run that took three times as long for a reason of its own does not carry a device's numbers to their limits; several that agree do move them.
    #[test]
    fn one_odd_run_says_little() {
        let read = runs::read(include_str!("../../tests/published.csv")).expect("a table").runs;
        let (clusters, frameworks) = (clusters(), known());
        let case = |run: &runs::Run| {
            let mut case = Case::new(run, &clusters, &frameworks).expect("a case");
            case.measured_s = Some(3.0 * case.step_time(&clusters, &frameworks).expect("a time"));
            case
        };
        let most = |cases: &[Case]| {
            let (_, _, fit) = fit(cases, &clusters, &frameworks, 8, 1);
            let factors = fit.changes.iter().map(|c| (c.after / c.before).ln().abs().exp());
            factors.fold(1.0, f64::max)
        };
        let one = most(&[case(&read[0])]);
        assert!(one < 1.3, "{one}");
        let many: Vec<Case> = std::iter::repeat_with(|| case(&read[0])).take(20).collect();
        let many = most(&many);
        assert!(many > 1.5, "{many}");
    }

    #[test]
    fn files_keep_their_comments() {
        let (_, text) = forebay_cost::known::FILES[0];
        let mut cluster = Cluster::parse(text).expect("a cluster");
        let was = cluster.clone();
        cluster.calibrated.kernel_us = NonNegative(7.25);
        let before = text;
        let text = rewritten(text, &was, &cluster);
        let other: Vec<&str> = before.lines().zip(text.lines()).filter(|(a, b)| a != b).map(|(_, b)| b).collect();
        assert!(matches!(&other[..], [line] if line.starts_with("kernel_us = 7.2500")), "{other:?}");
        assert_eq!(Cluster::parse(&text).expect("it is still a cluster").calibrated.kernel_us, NonNegative(7.25));
        assert!(text.contains('#'));
    }

    /// Numbers that were fitted are no estimates; those that stayed as they were still are.
    #[test]
    fn what_is_fitted_is_no_estimate() {
        let texts = forebay_cost::known::FILES.iter().map(|(_, text)| *text);
        for text in texts.filter(|text| text.contains("estimated = true")) {
            let was = Cluster::parse(text).expect("a cluster");
            let mut cluster = was.clone();
            assert_eq!(rewritten(text, &was, &cluster), text);
            cluster.calibrated.kernel_us = NonNegative(7.25);
            let fitted = Cluster::parse(&rewritten(text, &was, &cluster)).expect("it is still a cluster");
            assert!(was.calibrated.estimated && !fitted.calibrated.estimated, "{}", was.name);
            assert!(rewritten(text, &was, &cluster).contains(FITTED), "{}", was.name);
        }
    }
}
