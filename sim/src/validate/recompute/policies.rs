//! What is made again by policies of MaxText (`remat_policy`), which say what is kept.

use super::{ELEMENTWISE, parts_of};
use crate::kind::Kind;
use crate::lower::Recompute;
use crate::says::is_denied;
use crate::validate::runs::Run;
use regex_lite::Regex;
use std::sync::LazyLock;

/// The policy that a row's column begins with; by itself where it is none of the words that columns have anyway.
pub fn of_column(run: &Run, text: &str) -> Option<Recompute> {
    static BEGIN: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"^(remat[-_ ]policy["' =:]+)?["']?([a-z_-]+)["']?(?:$|[ ,;(])"#).expect("the pattern is right")
    });
    let found = BEGIN.captures(text)?;
    let is_option = found.get(1).is_some();
    Policy::of(&found[2]).filter(|policy| is_option || matches!(policy, Policy::Some(_))).map(|policy| policy.on(run))
}

/// The policy that a row's notes name as an option, and neither deny nor compare with.
pub fn of_notes(run: &Run, text: &str) -> Option<Recompute> {
    named(text).map(|policy| policy.on(run))
}

/// Do words name one?
pub fn is_named(text: &str) -> bool {
    named(text).is_some()
}

fn named(text: &str) -> Option<Policy> {
    static OPTION: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"\bremat[-_ ]policy["' =:]+([a-z_-]+)"#).expect("the pattern is right"));
    let meant = |found: regex_lite::Captures<'_>| {
        let whole = found.get(0)?;
        let is_denied = is_denied(&text[..whole.start()], &text[whole.end()..]);
        if is_denied { None } else { Policy::of(&found[1]) }
    };
    OPTION.captures_iter(text).find_map(meant)
}

/// What is made again.
enum Policy {
    Nothing,
    All,
    Some(Remade),
}

/// Attention's kernel, projections of queries, keys and values, output projections, and so much of MLPs and of experts. What is between products is made again in any case.
struct Remade {
    attention: bool,
    qkv: bool,
    out: bool,
    mlp: f64,
}

impl Policy {
    /// By its name (`get_remat_policy` of MaxText's decoders): of results of products, and of attention, what is kept, on the device or on the host.
    fn of(name: &str) -> Option<Policy> {
        let but = |attention, qkv, out, mlp| Some(Policy::Some(Remade { attention, qkv, out, mlp }));
        match &*name.replace('-', "_") {
            "none" => Some(Policy::Nothing),
            "full" => Some(Policy::All),
            "minimal_with_context" | "minimal_flash" => but(false, false, false, 0.0),
            "minimal" | "minimal_offloaded" => but(true, false, false, 0.0),
            "save_dot_with_context_except_mlp" => but(false, false, false, 1.0),
            "save_dot_except_mlp" => but(true, false, false, 1.0),
            // (Of an MLP's three matrices two are before its activation.)
            "save_dot_except_mlpwi" => but(true, false, false, 2.0 / 3.0),
            "save_qkv_proj" | "qkv_proj_offloaded" => but(true, false, true, 1.0),
            "save_out_proj" => but(true, true, false, 1.0),
            _ => None,
        }
    }

    /// Of a run's model.
    fn on(self, run: &Run) -> Recompute {
        let remade = match self {
            Policy::Nothing => return Recompute::default(),
            Policy::All => return Recompute::full(),
            Policy::Some(remade) => remade,
        };
        let OfProducts { qkv, out, mlp } = OfProducts::of(run);
        let part = |is: bool, part: f64| if is { part } else { 0.0 };
        let parts = [
            (Kind::Attention, part(remade.attention, 1.0)),
            (Kind::Products, part(remade.qkv, qkv) + part(remade.out, out) + remade.mlp * mlp),
            (Kind::ExpertProducts, remade.mlp),
            // (Rows come to experts once more where what experts make of them is made again.)
            (Kind::Ep, part(remade.mlp > 0.0, 1.0)),
            (Kind::Vector, ELEMENTWISE),
        ];
        Recompute { parts: parts_of(&parts), layers: vec![] }
    }
}

/// The part of a dense layer's products that are its MLP's.
pub fn part_of_mlp(run: &Run) -> f64 {
    OfProducts::of(run).mlp
}

/// Parts of a model's products, those of experts left out.
struct OfProducts {
    qkv: f64,
    out: f64,
    mlp: f64,
}

impl OfProducts {
    /// An MLP has a gate; attention's are four matrices of the width, two of them narrower where there are fewer key heads. Of a mixture dense layers and shared experts have MLPs.
    fn of(run: &Run) -> OfProducts {
        let of = |name: &str| run.degree(name) as f64;
        let keys = run.number("kv_heads").map_or(1.0, |kv| kv as f64 / of("heads").max(1.0));
        let heads = run.head.parse::<f64>().map_or(of("hidden"), |head| head * of("heads"));
        let some = |name: &str| run.number(name).unwrap_or(0) as f64;
        let width = if some("experts") > 0.0 {
            let dense = (some("dense_layers") / of("layers")).min(1.0);
            let expert = run.number("moe_ffn_hidden").filter(|n| *n > 0).map_or(some("ffn_hidden"), |n| n as f64);
            dense * some("ffn_hidden") + (1.0 - dense) * some("shared_experts") * expert
        } else {
            some("ffn_hidden")
        };
        let (qkv, out, mlp) = ((1.0 + 2.0 * keys) * heads, heads, 3.0 * width);
        let all = (qkv + out + mlp).max(1.0);
        OfProducts { qkv: qkv / all, out: out / all, mlp: mlp / all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policies in notes are options; of a mixture experts are made again with the rows that come to them, and attention's products are kept.
    #[test]
    fn policies_are_read() {
        let of = |notes: &str| {
            let columns = "layers,dense_layers,hidden,heads,ffn_hidden,moe_ffn_hidden,experts,topk,vocab,seq_len,device,n_devices,gbs,step_time_s,notes_config";
            let table = format!("{columns}\n4,0,64,4,256,64,8,2,64,64,H100,1,1,1,\"{notes}\"\n");
            let run = crate::validate::runs::read(&table).expect("a table").runs.remove(0);
            let mut ways = super::super::recomputes(&run).expect("ways");
            (ways.len() == 1).then(|| ways.remove(0).0.parts)
        };
        let but_mlp = of("MaxText; remat_policy=save_dot_except_mlp").expect("it is said");
        let at = |kind: Kind| but_mlp[kind.number()];
        assert_eq!([Kind::Products, Kind::ExpertProducts, Kind::Ep, Kind::Attention].map(at), [0.0, 1.0, 1.0, 1.0]);
        assert_eq!(of("faster than remat_policy=minimal; remat_policy=full"), Some(Recompute::full().parts));
        assert_eq!(of("remat_policy=minimal is not used; remat_policy='full'"), Some(Recompute::full().parts));
        assert_eq!(of("remat_policy=minimal-with-context"), of("remat_policy: minimal_with_context"));
        assert_eq!(of("remat_policy: none"), Some(Recompute::default().parts));
        assert_eq!((of("a minimal trainer"), of("remat_policy=custom")), (None, None));
        assert!(super::super::is_option("remat_policy=minimal") && !super::super::is_option("remat_policy=custom"));
    }
}
