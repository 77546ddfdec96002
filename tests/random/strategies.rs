//! Random strategies of up to eight ranks. Most of them fit most models; the others must be refused with a reason.

use super::draw::Draw;
use forebay_compiler::overlap::Pass;

/// The most ranks.
const RANKS: u32 = 8;

/// What a model is made for, and the text of the strategy.
pub struct Drawn {
    pub dp: u32,
    pub tp: u32,
    pub cp: u32,
    pub ep: u32,
    pub etp: u32,
    pub pp: u32,
    pub vpp: u32,
    /// Micro-batches of each data-parallel rank, and rows of each.
    pub micro: u32,
    pub mbs: u32,
    /// What is swapped to the host, if the model has it.
    pub swap: &'static str,
    pub text: String,
}

/// A strategy.
pub fn strategy(draw: &mut Draw) -> Drawn {
    let mut room = RANKS;
    let mut degree = |draw: &mut Draw, all: &[u32]| {
        let n = draw.of(all);
        let n = if n <= room { n } else { 1 };
        room /= n;
        n
    };
    let pp = degree(draw, &[1, 1, 2, 2, 3, 4]);
    let tp = degree(draw, &[1, 2, 1, 2, 4, 3]);
    let dp = degree(draw, &[1, 2, 1, 2, 4, 3]);
    let cp = degree(draw, &[1, 1, 1, 2, 4]);
    let etp = if draw.once_in(3) { draw.of(&divisors(tp * cp)) } else { 1 };
    let all = divisors(dp * cp * tp / etp);
    let ep = if draw.once_in(20) { 3 } else { draw.of(&all) };
    let vpp = if pp > 1 { draw.of(&[1, 2, 1, 3]) } else { 1 };
    let two_way = pp.is_multiple_of(2) && vpp == 1 && draw.once_in(3);
    let micro = match draw.of(&[1_u32, 2, 4, 3]) {
        n if two_way => 2 * pp + 2 * (n / 2),
        // Interleaved schedules take the micro-batches by `pp`.
        n if vpp > 1 && !draw.once_in(6) => pp * n.div_ceil(2),
        n => n,
    };
    let mbs = draw.of(&[1, 2]);
    let mut text = format!("dp={dp},tp={tp},cp={cp},ep={ep},etp={etp},pp={pp},vpp={vpp},micro={micro}");
    if draw.once_in(2) {
        text += &format!(",mbs={mbs}");
    }
    text += &format!(",zero={}", draw.of(&[0, 1, 2, 3]));
    if draw.once_in(4) {
        text += ",sp=0";
    }
    text += &format!(",cp_algo={}", draw.of(&["ulysses", "gather", "ring", "hybrid"]));
    let schedules: &[&str] = match (pp, vpp) {
        _ if two_way => &["dualpipe"],
        (1, _) => &["1f1b"],
        (_, 1) => &["1f1b", "gpipe", "zb-h1", "zb-h2"],
        (_, 2) => &["1f1b", "gpipe", "vpp-overlap", "zb-vpp", "zb-v", "v-half", "v-min", "dualpipev"],
        _ => &["1f1b", "gpipe", "vpp-overlap", "zb-vpp", "zb-v"],
    };
    text += &format!(",schedule={}", draw.of(schedules));
    text += ["", "", ",recompute=full", ",recompute=contract", ",recompute=attention"][draw.below(5)];
    if draw.once_in(3) {
        text += ",keep=inputs";
    }
    if ep > 1 && etp > 1 && draw.once_in(2) {
        text += ",etp_gather=after";
    }
    text += &overlapped(draw, ep > 1);
    let swap = ["", "", "attention", "contract", "group", "dispatch"][draw.below(6)];
    Drawn { swap, dp, tp, cp, ep, etp, pp, vpp, micro, mbs, text }
}

/// Which of the passes run that let work run beside other work: those on programs and calls, those on graphs, any of them together.
fn overlapped(draw: &mut Draw, shares_experts: bool) -> String {
    let mut text = match draw.below(4) {
        0 => String::new(),
        1 => ",overlap=none".into(),
        _ => {
            let some: Vec<&str> = Pass::ALL.into_iter().filter(|_| draw.once_in(2)).map(Pass::name).collect();
            if some.is_empty() { String::new() } else { format!(",overlap={}", some.join("/")) }
        }
    };
    text += ["", "", ",pieces=auto", ",pieces=auto", ",pieces=2"][draw.below(5)];
    if shares_experts && draw.once_in(5) {
        text += ",shares=before";
    }
    if shares_experts && draw.once_in(2) {
        let ways = ["", ",dispatch=hierarchical", ",dispatch=node-dedup", ",dispatch=rank-dedup"];
        text += &format!(",node=2{}", ways[draw.below(4)]);
    }
    text
}

fn divisors(n: u32) -> Vec<u32> {
    (1..=n).filter(|d| n.is_multiple_of(*d)).collect()
}

impl Drawn {
    /// The strategy of one rank with the same micro-batches; when a statistic is over all data-parallel ranks, with their rows in one.
    pub fn alone(&self, rows_together: bool) -> String {
        let micro = if rows_together { self.micro } else { self.micro * self.dp };
        format!("micro={micro}")
    }

    /// The strategy with what it swaps.
    pub fn swapping(&self) -> String {
        if self.swap.is_empty() { self.text.clone() } else { format!("{},swap={}", self.text, self.swap) }
    }

    /// Now and then an uneven cut into stages.
    pub fn cut(&mut self, draw: &mut Draw, layers: u32) {
        let parts = self.pp * self.vpp;
        if parts > 1 && draw.once_in(3) {
            let mut stages = vec![1; parts as usize];
            (parts..layers).for_each(|_| stages[draw.below(parts as usize)] += 1);
            // An embedding or a head without layers beside it.
            let last = parts as usize - 1;
            for (from, to) in [(0, 1), (last, last - 1)] {
                if draw.once_in(4) {
                    stages[to] += std::mem::take(&mut stages[from]);
                }
            }
            let stages: Vec<String> = stages.iter().map(u32::to_string).collect();
            self.text += &format!(",stages={}", stages.join("/"));
        }
    }

    /// Rows of a step.
    pub fn batch(&self) -> u32 {
        self.dp * self.micro * self.mbs
    }

    /// Do the ranks that share experts have all the rows, or only their own? (Between the two no single rank does the same.)
    pub fn group_is_all_or_one(&self) -> bool {
        let beyond = self.ep * self.etp / (self.tp * self.cp).min(self.ep * self.etp);
        beyond <= 1 || beyond == self.dp
    }

    /// Does the group of ranks that share experts span data-parallel ranks?
    pub fn group_spans_rows(&self) -> bool {
        self.dp > 1 && self.ep * self.etp > self.tp * self.cp
    }
}
