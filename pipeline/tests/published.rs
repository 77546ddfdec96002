//! What the published programs schedule, item by item: `published/` has the orders that they gave when they were run, and the makespans of those orders
//! by a replay that shares nothing with this crate. Each file says which programs, and what they leave open.

use crate::common::{size, usual};
use forebay_pipeline::{Item, Kind, Op, Schedule, Size, replay, verify};

/// What moves between stages costs this much where the makespans of a case were taken.
const P2PS: [u64; 2] = [0, 2];
/// F=10 I=12 W=8, and this for a pair.
const PAIR: u64 = 25;

fn fixture(kind: Kind) -> &'static str {
    match kind {
        Kind::GPipe => include_str!("published/gpipe.txt"),
        Kind::OneFOneB => include_str!("published/1f1b.txt"),
        Kind::Interleaved => include_str!("published/vpp.txt"),
        Kind::InterleavedOverlap => include_str!("published/vpp-overlap.txt"),
        Kind::ZbH1 => include_str!("published/zb-h1.txt"),
        Kind::ZbH2 => include_str!("published/zb-h2.txt"),
        Kind::ZbV => include_str!("published/zb-v.txt"),
        Kind::VHalf => include_str!("published/v-half.txt"),
        Kind::VMin => include_str!("published/v-min.txt"),
        Kind::InterleavedZb => include_str!("published/zb-vpp.txt"),
        Kind::DualPipe => include_str!("published/dualpipe.txt"),
        Kind::DualPipeV => include_str!("published/dualpipev.txt"),
    }
}

/// What programs gave for one size.
struct Case {
    kind: Kind,
    size: Size,
    /// The programs that gave exactly this.
    programs: Vec<&'static str>,
    /// For each of [`P2PS`].
    makespans: [u64; 2],
    /// Those of what the authors' own search finds for these costs, where its orders are others.
    searched: Option<[u64; 2]>,
    /// One line a stage.
    orders: Vec<&'static str>,
}

impl Case {
    fn name(&self) -> String {
        let Size { stages, chunks, micros } = self.size;
        format!("{} p={stages} v={chunks} m={micros}", self.kind.name())
    }

    fn ours(&self) -> Schedule {
        self.kind.generate(self.size).unwrap_or_else(|e| panic!("{}: {e}", self.name()))
    }

    fn published(&self) -> Schedule {
        Schedule::parse(self.ours().layout(), &self.orders).unwrap_or_else(|e| panic!("{}: {e}", self.name()))
    }

    /// Where the orders part first.
    fn difference(&self, ours: &Schedule) -> Option<String> {
        let ours = ours.texts();
        let mut stages = ours.iter().zip(&self.orders).enumerate();
        let (stage, ours, published) = stages.find_map(|(stage, (o, p))| (o != p).then_some((stage, o, p)))?;
        let (mut ours, mut published) = (ours.split(' '), published.split(' '));
        let (mut at, end) = (0, "nothing more");
        loop {
            let (our, their) = (ours.next(), published.next());
            if our != their {
                let (our, their) = (our.unwrap_or(end), their.unwrap_or(end));
                let programs = self.programs.join(", ");
                return Some(format!(
                    "{}, stage {stage}, item {at}: ours is {our}, that of {programs} is {their}",
                    self.name()
                ));
            }
            at += 1;
        }
    }
}

/// `case p=4 v=2 m=8 of=pytorch,megatron makespans=570,598`, then a line a stage; `source NAME …` says what NAME is; `#` is for readers.
fn cases(kind: Kind) -> Vec<Case> {
    let lines = fixture(kind).lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut cases: Vec<Case> = vec![];
    let mut sources = vec![];
    for line in lines {
        if let Some(source) = line.strip_prefix("source ") {
            sources.push(source.split(' ').next().expect("a name"));
        } else if let Some(head) = line.strip_prefix("case ") {
            let case = header(kind, head);
            assert!(case.programs.iter().all(|program| sources.contains(program)), "no source: {line}");
            cases.push(case);
        } else {
            cases.last_mut().expect("a case before its orders").orders.push(line);
        }
    }
    for case in &cases {
        assert_eq!(case.orders.len(), case.size.stages as usize, "{}: an order for each stage", case.name());
    }
    cases
}

fn header(kind: Kind, head: &'static str) -> Case {
    let field = |name: &str| head.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let needed = |name: &str| field(name).unwrap_or_else(|| panic!("no {name} in `{head}`"));
    let number = |name: &str| needed(name).parse::<u32>().expect("a number");
    Case {
        kind,
        size: size(number("p"), number("v"), number("m")),
        programs: needed("of").split(',').collect(),
        makespans: one_a_p2p(needed("makespans")),
        searched: field("search").map(one_a_p2p),
        orders: vec![],
    }
}

fn one_a_p2p(text: &str) -> [u64; 2] {
    let numbers: Vec<u64> = text.split(',').map(|n| n.parse().expect("a makespan")).collect();
    numbers.try_into().expect("one for each p2p")
}

fn all_cases() -> impl Iterator<Item = Case> {
    Kind::ALL.into_iter().flat_map(cases)
}

#[test]
fn orders_are_those_of_the_published_programs() {
    let differences: Vec<String> = all_cases().filter_map(|case| case.difference(&case.ours())).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// A replay of ours and one of theirs give the makespan that was worked out for theirs elsewhere.
#[test]
fn makespans_are_those_of_the_published_orders() {
    for case in all_cases() {
        for (schedule, whose) in [(case.published(), "published"), (case.ours(), "ours")] {
            let makespan = |p2p: u64| {
                let costs = usual(&schedule).with_p2p(p2p).with_pair(Some(PAIR));
                replay(&schedule, &costs).unwrap_or_else(|e| panic!("{}, {whose}: {e}", case.name())).makespan
            };
            assert_eq!(P2PS.map(makespan), case.makespans, "{}, {whose}, p2p {P2PS:?}", case.name());
        }
    }
}

/// Where the authors' search for given costs finds other orders than those that they made by hand, it finds none that is shorter, once the pipeline fills.
#[test]
fn what_the_authors_search_finds_is_no_shorter() {
    let filled = |case: &Case| case.size.micros >= 2 * case.size.stages - 1;
    let searched = all_cases().filter(filled).filter_map(|case| Some((case.name(), case.makespans, case.searched?)));
    let (mut compared, mut equal) = (0, 0);
    for (name, ours, searched) in searched {
        assert!(ours.iter().zip(searched).all(|(ours, searched)| *ours <= searched), "{name}: {ours:?}, {searched:?}");
        compared += 1;
        equal += usize::from(ours == searched);
    }
    assert_eq!((compared, equal), (8, 7));
}

/// Each kind is compared at two usual sizes and an odd one at least, and what is compared is a schedule.
#[test]
fn every_kind_is_compared() {
    for kind in Kind::ALL {
        let cases = cases(kind);
        let has = |p, m| cases.iter().any(|case| (case.size.stages, case.size.micros) == (p, m));
        assert!(has(4, 8) && has(8, 16), "{}", kind.name());
        assert!(cases.iter().any(|case| case.size.micros != 2 * case.size.stages), "{}", kind.name());
        for case in &cases {
            assert!(verify(&case.published(), None).is_ok(), "{}: {:?}", case.name(), verify(&case.published(), None));
        }
    }
}

/// 2(p − 1 − r) + (v − 1)p + 1 forwards before the first pair, in the programs' orders; a round of more than p micro-batches stands for p.
#[test]
fn one_more_forward_than_stock() {
    for (kind, more) in [(Kind::Interleaved, 0), (Kind::InterleavedOverlap, 1)] {
        for case in cases(kind) {
            let Size { stages, chunks, micros } = case.size;
            let round = micros / (micros / stages).max(1);
            for (rank, order) in (0..).zip(case.published().orders()) {
                let formula = (2 * (stages - 1 - rank) + (chunks - 1) * round + more).min(chunks * micros);
                let forward = |item: &&Item| matches!(item, Item::One(work) if work.op == Op::F);
                let ahead = order.iter().take_while(forward).count() as u32;
                // Without pairs the first forward of the steady state stands alone, too.
                let steady = u32::from(more == 0 && formula < chunks * micros);
                assert_eq!(ahead, formula + steady, "{}, stage {rank}", case.name());
            }
        }
    }
}

#[test]
fn a_difference_is_told() {
    let mut case = cases(Kind::ZbV).swap_remove(0);
    let (ours, mut told) = (case.ours(), vec![]);
    assert_eq!(case.difference(&ours), None);
    let last = case.orders.pop().expect("a stage");
    for changed in
        [last.replacen("F2:0 F1:1", "F1:1 F2:0", 1), format!("{last} W2:9"), last[..last.len() - 5].to_owned()]
    {
        case.orders.push(changed.leak());
        told.push(case.difference(&ours).expect("a difference"));
        case.orders.pop();
    }
    insta::assert_snapshot!(told.join("\n"));
}
