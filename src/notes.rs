//! What a reader of a plan's numbers should know.

use crate::output::grouped;
use crate::say::say;
use forebay_cost::{Cluster, Product};
use forebay_plan::{Kernel, Plan};
use forebay_sim::aligned::Alignment;

/// That `max_tokens_per_rank` is less than what comes to the busiest rank, with an even routing.
pub fn few_rows(plan: &Plan) -> Option<String> {
    fewer_rows(plan, 1.0, 0)
}

/// The same of a given room, with so many times the rows of an even routing. (Exchanges with less room send tokens but once: of these no more can come.)
pub fn fewer_rows(plan: &Plan, imbalance: f64, room: u64) -> Option<String> {
    let exchanged = plan.programs.iter().flat_map(|p| &p.instructions).filter_map(|i| match &i.kernel {
        Kernel::AllToAllV(k) if k.bound >= room => Some((k.bound, (k.even as f64 * imbalance).ceil() as u64)),
        _ => None,
    });
    let (bound, rows) = exchanged.filter(|(bound, rows)| bound < rows).max_by_key(|(_, rows)| *rows)?;
    let how = if imbalance > 1.0 { "this routing" } else { "an even routing" };
    Some(format!(
        "max_tokens_per_rank leaves room for {} rows, but {how} brings {} to the busiest rank: such a step cannot run",
        grouped(bound),
        grouped(rows)
    ))
}

/// That products have matrices whose rows wide loads cannot read, on a device of which it is known what that costs, where they are a part of the work that counts.
pub fn unaligned(plan: &Plan, cluster: &Cluster) -> Option<String> {
    let products = plan.programs.iter().flat_map(|p| &p.instructions).filter_map(|i| match &i.kernel {
        Kernel::Matmul(k) => Some((Alignment::of(k), k.product_flops(), k.dtype.bytes())),
        _ => None,
    });
    let products: Vec<_> = products.collect();
    let all: f64 = products.iter().map(|(_, flops, _)| flops).sum();
    let worse = products.into_iter().filter(|(alignment, ..)| alignment.bytes < Product::ALIGNED);
    let (Alignment { bytes, pitch }, flops, element) = worse.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let times = cluster.device.unaligned(bytes);
    (times > 1.0 && flops >= WORTH_A_NOTE * all).then(|| {
        let to = Product::ALIGNED / element;
        format!(
            "rows of {} elements (on a rank) do not begin at multiples of {} bytes: products of them take up to {times} times as long on {}; with {} they would not",
            grouped(pitch),
            Product::ALIGNED,
            cluster.device.name,
            grouped(pitch.next_multiple_of(to)),
        )
    })
}

/// A product that has less of all products' FLOPs is not worth a note.
const WORTH_A_NOTE: f64 = 0.01;

/// Prints a note on stderr.
pub fn print(note: Option<String>) {
    if let Some(note) = note {
        say!("note: {note}");
    }
}
