//! `forebay schedule`

mod costs;
mod report;

use crate::failure::Failure;
use crate::files::{can_write_all, is_stdout, write_out};
use crate::output::{print, print_json};
use crate::search::Bar;
use clap::ValueEnum;
use costs::{CostArg, LayerSpec, Prices};
use forebay_pipeline::bound::lower_bound;
use forebay_pipeline::layers::{self, fitted};
use forebay_pipeline::search::{Found, FoundCut, Request, search, search_cuts};
use forebay_pipeline::{
    Costs, Decimal, Kind, Layout, Placement, Schedule, ScheduleError, Size, Timeline, replay, verify,
};
use report::{CutReport, Report, Searched};
use std::path::PathBuf;

/// Items of a schedule that are drawn: more cannot be read.
const MOST_DRAWN: usize = 20_000;

/// Show a pipeline schedule: orders, makespan, bubble and memory; or search for a better one
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay schedule --kind 1f1b --stages 4 --microbatches 8
  forebay schedule --kind zb-v --stages 4 --microbatches 8 --costs F=10,I=12,W=8 --p2p 2 --svg zb-v.svg
  forebay schedule --kind all --stages 8 --chunks 2 --microbatches 16 --costs F=10,I=12,W=8 --p2p 2 --pair 25
  forebay schedule --kind search --stages 8 --chunks 2 --microbatches 16 --costs F=10,I=12,W=8 --p2p 2 --cap 16
  forebay schedule --kind search --stages 2 --chunks 2 --microbatches 8 --costs F=8/10/10/13,I=9/12/12/14,W=6/8/8/10
  forebay schedule --kind search --stages 4 --microbatches 16 --layers 1x4:2:1,3x8:9:6,26x10:12:8,1x6:9:7

An order is a list of <op><layer group>:<micro-batch>, with the ops F (forward), I (backward for the input), W (backward for the weights),
B (I and W together), and A&B for two that run together. Layer groups count in the order of the model.

Times have no unit: they are in that of --costs. An activation is held from the start of F to the end of W or B; --cap and peaks count
activations of one layer group and one micro-batch.")]
pub struct Args {
    /// The schedule, `search` for the best that is found, `all` for a table
    #[arg(long, value_enum)]
    kind: KindArg,
    /// Stages of the pipeline
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..))]
    stages: u32,
    /// Layer groups that a stage holds [default: 1 for gpipe, 1f1b, zb-h1 and zb-h2, otherwise 2]
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Micro-batches of a step
    #[arg(long, value_name = "M", visible_alias = "micro-batches", value_parser = clap::value_parser!(u32).range(1..))]
    microbatches: u32,
    /// What a layer group costs: F=10,I=12,W=8; one number for all groups or one for each, F=8/10/10/12; or a `.toml` file with the same
    /// keys, and p2p and pair [default: F=1,I=1,W=1]
    #[arg(long, value_name = "COSTS", value_parser = costs::cost_arg)]
    costs: Option<CostArg>,
    /// Layers to cut into groups so that the slowest stage is fast: COUNTxF:I:W,… in the order of the model
    #[arg(long, value_name = "LAYERS", value_parser = costs::layer_spec, conflicts_with = "costs")]
    layers: Option<LayerSpec>,
    /// From the end of work on one stage to the start of work on another that needs it [default: 0]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    p2p: Option<Decimal>,
    /// What a forward and a backward cost together when they run as a pair: their sum at most [default: the sum]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    pair: Option<Decimal>,
    /// The most activations that a stage may hold
    #[arg(long, value_name = "CHUNKS", value_parser = clap::value_parser!(u32).range(1..))]
    cap: Option<u32>,
    /// Where a search may place layer groups [default: auto, all that there are]
    #[arg(long, value_enum)]
    placement: Option<PlacementArg>,
    /// Replays that a search may take [default: up to 4,000,000, fewer for large schedules]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    nodes: Option<u64>,
    /// Draw the diagram into a file; `-` prints it in place of the report
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// What to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindArg {
    /// All forwards, then all backwards
    #[value(name = "gpipe")]
    GPipe,
    /// One forward, one backward
    #[value(name = "1f1b")]
    OneFOneB,
    /// Interleaved 1F1B: a virtual pipeline of several chunks a stage
    #[value(name = "vpp", alias = "interleaved")]
    Interleaved,
    /// The same with one more forward ahead, and F/B pairs
    #[value(name = "vpp-overlap", aliases = ["vpp-extra", "interleaved-overlap"])]
    InterleavedOverlap,
    /// Zero bubble at the activations of 1F1B; what the first half of a backward pass leaves for the second is kept beside them
    ZbH1,
    /// Zero bubble at twice the memory
    ZbH2,
    /// Zero bubble, two chunks in a V
    #[value(name = "zb-v", alias = "zbv")]
    ZbV,
    /// Half the memory of 1F1B, two chunks in a V
    VHalf,
    /// A third of the memory of 1F1B, two chunks in a V
    VMin,
    /// Interleaved zero bubble
    #[value(name = "zb-vpp", aliases = ["interleaved-zb", "zb-interleaved"])]
    InterleavedZb,
    /// Both directions, F/B pairs, weights twice
    #[value(name = "dualpipe")]
    DualPipe,
    /// DualPipe cut in half, two chunks in a V
    #[value(name = "dualpipev", alias = "dualpipe-v")]
    DualPipeV,
    /// The best that is found under --cap
    Search,
    /// A table of all that there are at this size
    All,
}

/// Where layer groups go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PlacementArg {
    /// All that there are
    Auto,
    /// The model cut once
    Plain,
    /// Round the stages, chunk by chunk
    Interleaved,
    /// There and back again
    V,
}

impl KindArg {
    /// The published schedule, if it is one.
    fn published(self) -> Option<Kind> {
        Some(match self {
            KindArg::GPipe => Kind::GPipe,
            KindArg::OneFOneB => Kind::OneFOneB,
            KindArg::Interleaved => Kind::Interleaved,
            KindArg::InterleavedOverlap => Kind::InterleavedOverlap,
            KindArg::ZbH1 => Kind::ZbH1,
            KindArg::ZbH2 => Kind::ZbH2,
            KindArg::ZbV => Kind::ZbV,
            KindArg::VHalf => Kind::VHalf,
            KindArg::VMin => Kind::VMin,
            KindArg::InterleavedZb => Kind::InterleavedZb,
            KindArg::DualPipe => Kind::DualPipe,
            KindArg::DualPipeV => Kind::DualPipeV,
            KindArg::Search | KindArg::All => return None,
        })
    }
}

pub fn schedule(args: Args) -> Result<(), Failure> {
    usage(&args)?;
    let read = args.costs.as_ref().and_then(CostArg::file).map(|path| ("--costs", path.to_path_buf()));
    can_write_all(read.as_slice(), &[("--svg", args.svg.as_deref())])?;
    let chunks = args.chunks.unwrap_or(args.kind.published().map_or(2, Kind::default_chunks));
    let size = Size::new(args.stages, chunks, args.microbatches)?;
    let costs = args.costs.as_ref().map(CostArg::spec).transpose()?;
    let prices = Prices::new(costs.as_ref(), args.layers.as_ref(), args.p2p, args.pair)?;
    if args.kind == KindArg::All {
        return all(&args, size, &prices);
    }
    let report = match args.kind.published() {
        Some(kind) => one(&args, kind, size, &prices)?,
        None => found(&args, size, &prices)?,
    };
    if let Some(path) = &args.svg {
        write_out(path, draw(&report, &prices)?.as_bytes())?;
        if is_stdout(path) {
            return Ok(());
        }
    }
    if args.json { print_json(&report.json(&prices)) } else { print(&report.text(&prices)) }
}

fn usage(args: &Args) -> Result<(), Failure> {
    let searching = args.kind == KindArg::Search;
    let wrong = |text: &str| Err(Failure::Usage(text.to_string()));
    match args {
        Args { placement: Some(_), .. } if !searching => {
            wrong("--placement is for --kind search: other kinds have theirs")
        }
        Args { nodes: Some(_), .. } if !searching => wrong("--nodes is for --kind search"),
        Args { svg: Some(_), kind: KindArg::All, .. } => wrong("--svg draws one schedule: name its --kind"),
        Args { layers: Some(_), kind: KindArg::All, .. } => {
            wrong("--layers are cut for one schedule: name its --kind, or give --costs by layer group")
        }
        _ => Ok(()),
    }
}

/// A published schedule.
fn one(args: &Args, kind: Kind, size: Size, prices: &Prices) -> Result<Report, Failure> {
    let schedule = kind.generate(size)?;
    let layout = schedule.layout();
    let makespan = |costs: &Costs| Some(replay(&schedule, costs).ok()?.makespan);
    let (costs, cut) = match prices.layers() {
        None => (prices.costs(layout)?, None),
        Some(layers) => {
            let (costs, cut) = fitted(layers, layout, |costs| prices.with_links(costs), makespan)?;
            (costs, Some((layers, cut)))
        }
    };
    costs.check(layout)?;
    capped(kind, &schedule, args.cap)?;
    let of_groups = lower_bound(layout, &costs, args.cap);
    let bound = cut.as_ref().map_or(of_groups, |(layers, _)| layers::lower_bound(layers, layout, &costs, args.cap));
    let cut = cut.map(|(_, cut)| CutReport { cut, bound: of_groups });
    let timeline = replay(&schedule, &costs)?;
    Ok(Report { name: kind.name().to_string(), schedule, timeline, costs, bound, cut, searched: None })
}

/// Refuses a schedule that holds too much, and says where.
fn capped(kind: Kind, schedule: &Schedule, cap: Option<u32>) -> Result<(), Failure> {
    let Some(cap) = cap else { return Ok(()) };
    let over = (0..).zip(schedule.peaks()).filter(|(_, peak)| *peak > cap);
    let Some(most) = over.clone().map(|(_, peak)| peak).max() else { return Ok(()) };
    Err(Failure::Input(format!(
        "{} holds up to {most} activations at once; the cap is {cap} (stages over it: {})\n  = help: --kind search keeps to a cap; --kind all shows peaks",
        kind.name(),
        report::runs(over.map(|(stage, _)| (stage, stage)))
    )))
}

/// A schedule that was searched for.
fn found(args: &Args, size: Size, prices: &Prices) -> Result<Report, Failure> {
    let placements = placements(args.placement.unwrap_or(PlacementArg::Auto), size);
    let shown = |ticks| forebay_pipeline::shown(ticks, prices.decimals());
    let bar = Bar::new(&shown, args.json);
    let request = |costs| Request { size, costs, cap: args.cap, placements: &placements, nodes: args.nodes };
    let mut progress = |progress| bar.show(progress);
    let (found, costs, bound, cut) = match prices.layers() {
        None => {
            let costs = prices.costs(Layout { size, placement: placements[0] })?;
            let found = search(&request(&costs), &mut progress)?;
            let bound = found.bound;
            (found, costs, bound, None)
        }
        Some(layers) => {
            let links = prices.with_links(Costs::equal(0, 0, 0, 0));
            let FoundCut { found, costs, cut, bound } = search_cuts(layers, &request(&links), &mut progress)?;
            let cut = CutReport { cut, bound: found.bound };
            (found, costs, bound, Some(cut))
        }
    };
    bar.finish();
    let Found { schedule, published, nodes, .. } = found;
    verify(&schedule, args.cap).expect("a searched schedule is valid");
    let timeline = replay(&schedule, &costs)?;
    let name = match published {
        Some(kind) => format!("search: nothing beats {}", kind.name()),
        None => "search".to_string(),
    };
    Ok(Report { name, schedule, timeline, costs, bound, cut, searched: Some(Searched { published, nodes }) })
}

fn placements(wanted: PlacementArg, size: Size) -> Vec<Placement> {
    match wanted {
        // With one chunk they are the same.
        PlacementArg::Auto if size.chunks == 1 => vec![Placement::Blocked],
        PlacementArg::Auto => vec![Placement::Wave, Placement::Interleaved, Placement::Blocked],
        PlacementArg::Plain => vec![Placement::Blocked],
        PlacementArg::Interleaved => vec![Placement::Interleaved],
        PlacementArg::V => vec![Placement::Wave],
    }
}

fn draw(report: &Report, prices: &Prices) -> Result<String, Failure> {
    let items: usize = report.schedule.orders().iter().map(Vec::len).sum();
    if items > MOST_DRAWN {
        return Err(Failure::Input(format!(
            "a diagram of {items} items cannot be read; the most is {MOST_DRAWN}\n  = help: the steady state repeats: draw fewer micro-batches"
        )));
    }
    let title = report.title();
    Ok(forebay_pipeline::draw::svg(&report.schedule, &report.timeline, &title, 10u64.pow(prices.decimals())))
}

/// A table of what there is, each with the same layer groups.
fn all(args: &Args, size: Size, prices: &Prices) -> Result<(), Failure> {
    let row = |kind: Kind| -> Result<(Schedule, Timeline, u64), ScheduleError> {
        // A stage of DualPipe has as many groups of each direction.
        let chunks = if kind.placement() == Placement::TwoWay { 2 * size.chunks } else { size.chunks };
        let schedule = kind.generate(Size::new(size.stages, chunks, size.micros)?)?;
        let costs = prices.costs(schedule.layout())?;
        costs.check(schedule.layout())?;
        // The cap says nothing about a schedule that does not keep to it.
        let cap = args.cap.filter(|_| report::within(&schedule, args.cap));
        let bound = lower_bound(schedule.layout(), &costs, cap);
        let timeline = replay(&schedule, &costs).map_err(|stuck| ScheduleError::plain(stuck.to_string()))?;
        Ok((schedule, timeline, bound))
    };
    // What is wrong with the costs is wrong with all.
    let layout = Layout { size, placement: Placement::Blocked };
    prices.costs(layout)?.check(layout)?;
    let rows = Kind::ALL.map(|kind| (kind, row(kind)));
    match args.json {
        true => print_json(&report::all_json(&rows, args.cap, prices)),
        false => print(&report::all_text(&rows, size, args.cap, prices)),
    }
}
