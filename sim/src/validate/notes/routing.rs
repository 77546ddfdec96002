//! What a row says of the rows of experts: who chooses experts, and how many rows these have room for.

use super::Run;
use crate::framework::Framework;
use crate::says::{is_denied, number_of, said_any, says, spaced};
use regex_lite::{Match, Regex};
use std::sync::LazyLock;

/// Rows of the busiest rank where nothing says that routers are forced to balance, as a multiple of the mean: an assumption.
const UNKNOWN_ROUTING: f64 = 1.1;
/// The same where a run says that routing is real: what makes pairs of published runs with real and with forced routing differ as they do (docs/cost-model.md).
const REAL_ROUTING: f64 = 1.6;

/// What frameworks call the rows that an expert has room for, as a multiple of those that an even routing brings (`--moe-expert-capacity-factor`, `train_capacity_factor`).
const CAPACITY: [&str; 2] = ["train capacity factor", "capacity factor"];

/// Capacities of other things: what holds while a model is evaluated, and how much memory recorded steps have for the rows of a rank.
const OTHER_CAPACITIES: [&str; 4] =
    ["eval_capacity_factor", "eval-capacity-factor", "expert_rank_capacity_factor", "expert-rank-capacity-factor"];

/// The capacity that a row gives its experts. (No number, or none above 0, is dropless.)
pub(super) fn capacity(text: &str) -> Option<f64> {
    let text = OTHER_CAPACITIES.iter().fold(text.to_string(), |text, other| text.replace(other, ""));
    CAPACITY.iter().find_map(|words| number_of(&text, words)).filter(|factor| (0.01..=MOST_CAPACITY).contains(factor))
}

/// Megatron-Core's option drops what is beyond a capacity, and fills up what is not only where it is told to; others fill up unless they are told not to.
pub(super) fn drops_alone(text: &str) -> bool {
    // Of other things that are padded or not, such as vocabularies and rows, it says nothing.
    let alone = ["padded", "not padded", "no padding", "without padding"];
    let of_capacity = |clause: &&str| spaced(clause).contains("capacity") || alone.contains(&clause.trim());
    let clauses: String = text.split([';', ',']).filter(of_capacity).collect::<Vec<_>>().join(";");
    let bounds =
        || ["moe-expert-capacity-factor", "no padding", "without padding"].iter().any(|words| says(&clauses, words));
    said_any(&clauses, &["pad", "padded"]).map_or_else(bounds, |pads| !pads)
}

/// More than that is another number.
const MOST_CAPACITY: f64 = 64.0;

/// On how many nodes the experts of a token are at most, where a row says or denies that it is not all: `node-limited routing to 4 nodes`, `node-limited routing (4 nodes)`.
pub fn node_limit(text: &str) -> Option<u32> {
    static IN_BRACKETS: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"node[- ]limited(?: routing)? \((?:to |at most )?(\d+) nodes?\)").expect("the pattern is right")
    });
    let text = text.to_lowercase();
    let number = NODE_LIMIT.iter().find_map(|words| number_of(&text, words)).map(|nodes| nodes as u32);
    let in_brackets = || IN_BRACKETS.captures(&text)?[1].parse().ok();
    match said_any(&text, &NODE_LIMIT) {
        Some(false) => Some(0),
        _ => number.or_else(in_brackets),
    }
}

/// What says how many nodes the experts of a token are on at most.
const NODE_LIMIT: [&str; 2] = ["node-limited routing", "node-limited"];

/// Who chooses experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routing {
    /// Something that gives each as many rows.
    Forced,
    /// A router.
    Real,
}

/// Who a text says chooses experts: forced where both are said, and a router where forcing is denied (`moe_router_force_load_balancing=False`).
pub(super) fn routing(text: &str) -> Option<Routing> {
    let spaced = spaced(text);
    let is_meant = |found: Match| !is_denied(&spaced[..found.start()], &spaced[found.end()..]);
    match FORCED.find_iter(&spaced).map(is_meant).reduce(|one, other| one || other) {
        Some(true) => Some(Routing::Forced),
        None if !["real routing", "natural routing"].iter().any(|words| says(text, words)) => None,
        _ => Some(Routing::Real),
    }
}

/// What says that experts have as many rows each, whatever a router would choose: `force_load_balancing`, `forced expert balancing`, `router forced to balance`, `fake balanced gate`.
static FORCED: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"\b(?:forced? (?:\w+ ){0,2}?(?:balanc|uniform|rout)\w*(?: (?:rout\w*|gates?))?|rout\w* (?:is |was )?forced?(?: (?:\w+ ){0,2}?(?:balanc|uniform)\w*)?|fake balanced(?: gates?)?)\b";
    Regex::new(pattern).expect("the pattern is right")
});

/// Rows of the busiest rank. With a capacity all experts compute and exchange as many rows as they have room for, used or not (arXiv 2006.16668, 2101.03961). Of our own plan as `simulate` has it where nothing is said: even.
pub fn imbalance(run: &Run, framework: &Framework) -> f64 {
    let text = run.text.to_lowercase();
    let dense = run.number("experts").unwrap_or(0) == 0;
    let routing = routing(&text);
    let routed = match routing {
        Some(Routing::Forced) => 1.0,
        Some(Routing::Real) => REAL_ROUTING,
        None if framework.is_ours() => 1.0,
        None if framework.real_routing => REAL_ROUTING,
        None => UNKNOWN_ROUTING,
    };
    match room(run, framework) {
        _ if dense => 1.0,
        Some(factor) if drops_alone(&text) => factor.min(routed),
        Some(factor) => factor,
        None => routed,
    }
}

/// The capacity that experts have, where they compute all of it, used or not.
pub(super) fn filled_up(run: &Run, framework: &Framework) -> Option<f64> {
    room(run, framework).filter(|_| !drops_alone(&run.text.to_lowercase()))
}

/// The capacity that experts have: what the row says, or else what the framework does unasked, if it is not told to route for real or to drop nothing.
fn room(run: &Run, framework: &Framework) -> Option<f64> {
    let text = run.text.to_lowercase();
    let told = routing(&text) == Some(Routing::Real) || says(&text, "dropless");
    capacity(&text).or(Some(framework.capacity).filter(|factor| *factor > 0.0 && !told))
}

/// The same, where experts are on several ranks and nothing says how rows fall on them.
pub fn assumed_imbalance(run: &Run, framework: &Framework) -> Option<f64> {
    let text = run.text.to_lowercase();
    let has_room = framework.capacity > 0.0 && !says(&text, "dropless");
    let is_said = routing(&text).is_some() || capacity(&text).is_some() || has_room;
    let matters = run.number("experts").unwrap_or(0) > 0 && run.degree("ep") > 1;
    (matters && !is_said).then(|| imbalance(run, framework))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{as_stated, run_of};
    use super::*;
    use crate::framework::{find, known};

    /// Experts with a capacity compute what they have room for; hosts do not wait for what comes.
    #[test]
    fn capacities_are_read() {
        let of = |experts: &str, notes: &str| {
            let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,experts,notes_config";
            let table = format!("{columns}\n1,1,1,1,1,H100,1,1,1,{experts},{notes}\n");
            let run = crate::validate::runs::read(&table).expect("a table").runs.remove(0);
            imbalance(&run, &find(&known(), "megatron-core"))
        };
        assert_eq!(
            (of("8", "capacity factor 1.25; padded"), of("8", "moe_expert_capacity_factor=2 pad_expert_input")),
            (1.25, 2.0)
        );
        assert_eq!(of("8", "--moe-expert-capacity-factor 2"), UNKNOWN_ROUTING, "what is not there is not filled up");
        let bounds = [
            "capacity factor 2 (no padding)",
            "capacity factor 2 not padded",
            "capacity factor 2 without padding",
            "--moe-expert-capacity-factor 2; vocab padded to 128",
            "--moe-expert-capacity-factor 2; pad token masked",
            "capacity factor 2; no padding",
        ];
        assert_eq!(bounds.map(|notes| of("8", notes)), [UNKNOWN_ROUTING; 6]);
        assert_eq!(of("8", "--moe-expert-capacity-factor 2; padded"), 2.0);
        assert_eq!(of("8", "capacity factor 2; sequences packed without padding"), 2.0);
        assert_eq!((of("8", "token-drop capacity factor 1"), of("8", "router forced to balance")), (1.0, 1.0));
        assert_eq!((of("8", "capacity factor 1.5; real routing"), of("8", "real routing")), (1.5, REAL_ROUTING));
        assert_eq!(["", "no capacity factor", "capacity factor -1"].map(|notes| of("8", notes)), [UNKNOWN_ROUTING; 3]);
        assert_eq!(of("0", "capacity factor 1.5"), 1.0);
        let denied = [
            "moe_router_force_load_balancing=false",
            "force-balanced off",
            "no force-balance",
            "natural routing",
            "fake_balanced_gate: false",
            "force-balanced routing=False",
            "forced load balance off",
            "router force-balanced off",
        ];
        assert_eq!(denied.map(|notes| of("8", notes)), [REAL_ROUTING; 8]);
        assert_eq!(of("8", "no brute-force search"), UNKNOWN_ROUTING);
        let forced = [
            "--moe-router-force-load-balancing",
            "fake balanced gate",
            "force_balanced=true",
            "router forced balance",
            "forced expert balancing",
            "router force-balanced",
            "forced routing",
        ];
        assert_eq!(forced.map(|notes| of("8", notes)), [1.0; 7]);
        // What a system drops unasked it does not where routing is real, or nothing is dropped.
        let unasked = |notes: &str| {
            imbalance(&run_of("experts", "8", notes), &Framework { capacity: 1.25, ..find(&known(), "megatron-core") })
        };
        assert_eq!(["", "dropless", "real routing"].map(unasked), [1.25, UNKNOWN_ROUTING, REAL_ROUTING]);
        assert_eq!(unasked("capacity factor 2, padded"), 2.0);
        // In PyTorch routers choose; what nobody says is told where it matters.
        let of_profile = |name: &str, ep: u32, notes: &str| {
            let framework = known().into_iter().find(|f| f.name == name).expect("a profile");
            let run = run_of("experts,ep", &format!("8,{ep}"), notes);
            (imbalance(&run, &framework), assumed_imbalance(&run, &framework))
        };
        assert_eq!(of_profile("torchtitan-eager", 8, ""), (REAL_ROUTING, Some(REAL_ROUTING)));
        assert_eq!(of_profile("pytorch-mixtures", 8, "forced routing"), (1.0, None));
        assert_eq!(of_profile("megatron-lm", 8, ""), (UNKNOWN_ROUTING, Some(UNKNOWN_ROUTING)));
        assert_eq!(of_profile("megatron-lm", 1, ""), (UNKNOWN_ROUTING, None));
        // Room for a rank's rows is memory, and what drops nothing.
        assert_eq!(of("8", "moe_expert_rank_capacity_factor=1.5; router forced to balance"), 1.0);
        let waits =
            |notes: &str| as_stated("8", notes, Framework { experts_wait: true, ..Framework::default() }).experts_wait;
        assert_eq!(
            ["capacity_factor: 1.25", "token-drop", "no capacity factor", "", "--moe-expert-capacity-factor 2"]
                .map(waits),
            [false, false, true, true, true]
        );
        assert!(!waits("--moe-expert-capacity-factor 2 --moe-pad-expert-input-to-capacity"));
    }
}
