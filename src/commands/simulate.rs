//! `forebay simulate`

use crate::cluster;
use crate::failure::Failure;
use crate::files::{can_write_all, is_stdout, write_out};
use crate::load::imbalance;
use crate::memory::{self, Room};
use crate::notes::{fewer_rows, unaligned};
use crate::on_cluster::{OnCluster, SetUp, plan_prices};
use crate::output::{Table, grouped, percent, print, print_json, seconds, size};
use crate::page::{self, Page, Told};
use crate::progress::Spinner;
use crate::say::say;
use crate::straggler::{Slow, placed};
use crate::trace::simulated;
use clap::ValueEnum;
use forebay_compiler::overlap::Passes;
use forebay_compiler::pipeline::CompileOptions;
use forebay_compiler::schedule::Gradients;
use forebay_cost::{Cluster, Precision, Release};
use forebay_plan::{DType, Instruction, Kernel, Plan};
use forebay_sim::documents::{Within, stay_within};
use forebay_sim::framework::{AttentionName, Framework};
use forebay_sim::lower::Recompute;
use forebay_sim::report::{Options, Report};
use forebay_sim::routes::domains;
use forebay_sim::steps::Fidelity;
use forebay_sim::{REGAIN_S, ValuePricer};
use std::path::{Path, PathBuf};

/// Predict the time and memory of a training step on a cluster
///
/// The model is compiled to the plan that `forebay run` would execute; the plan is timed, kernel by kernel, and replayed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay simulate model.moe --cluster h100 --strategy tp=2,ep=8,zero=1,mbs=1 --devices 64 --batch 512
  forebay simulate model.moe --cluster examples/clusters/atlas-800t-a2.toml --strategy pp=16,ep=32,mbs=1 --devices 8192 --batch 8192 --json
  forebay simulate model.moe --cluster gb200-nvl72 --strategy s.toml --precision mxfp8 --tokens-per-expert zipf=1.1
  forebay simulate model.moe --cluster h100 --strategy pp=4,mbs=1 --batch 64 --trace trace.json --html step.html
  forebay simulate model.moe --cluster h100 --strategy pp=4,ep=8,mbs=1 --batch 512 --straggler 1.2      one slow device
  forebay simulate examples/models/packed-docs.moe --cluster h100 --seq 8192 --document-tokens 1500      documents that fill rows
  forebay simulate model.moe --cluster h100 --strategy dp=2,ep=2 --batch 2 -o model.plan      the plan that is priced: `forebay run` runs it

`--cluster` takes a file, or the name of one that is built in (those of examples/clusters).")]
pub struct Args {
    #[command(flatten)]
    on: OnCluster,
    /// How tokens fall on experts: `zipf=EXPONENT`, whose experts are dealt to ranks in turn by their loads, as a good placement would, or a file with a number for each expert, in their order [default: evenly]
    #[arg(long, value_name = "LOAD")]
    tokens_per_expert: Option<String>,
    /// Type of the inputs of products [default: that of --dtype]
    #[arg(long, value_enum, value_name = "TYPE")]
    precision: Option<PrecisionName>,
    /// Predict how this training system would run it: megatron-core, mindspeed, nanotron, … (a name that is none lists all). A frameworks.toml beside the cluster file says what is different, and has others: what `validate --fit -o` wrote, or one's own [default: our plan as it stands]
    #[arg(long, value_name = "NAME")]
    framework: Option<String>,
    /// Kernels of a software release, by year and month, on devices whose kernels gain from release to release [default: that of the cluster file]
    #[arg(long, value_name = "YY.MM", value_parser = release)]
    release: Option<Release>,
    /// One device takes so many times as long for its work, on a stage (from 0) or else where that costs most
    #[arg(long, value_name = "FACTOR[@STAGE]")]
    straggler: Option<Slow>,
    /// Tokens of a document, in the mean, where attention stays within the documents that fill a row (`doc = documents`) [default: as many as a row has]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    document_tokens: Option<u64>,
    /// Replay each instruction by itself
    #[arg(long)]
    instructions: bool,
    /// Write what happens when, for chrome://tracing and ui.perfetto.dev; `-` prints it in place of the report
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write a page with the pipeline, the streams, the memory and the costs, for a browser; `-` prints it in place of the report
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the plan that is priced, for `forebay run` and `forebay plan`; `-` for stdout, in place of the report
    #[arg(short, long, value_name = "PLAN")]
    output: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Type of the inputs of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PrecisionName {
    F32,
    Bf16,
    Fp16,
    Fp8,
    Mxfp8,
}

impl From<PrecisionName> for Precision {
    fn from(name: PrecisionName) -> Precision {
        match name {
            PrecisionName::F32 => Precision::F32,
            PrecisionName::Bf16 | PrecisionName::Fp16 => Precision::Bf16,
            PrecisionName::Fp8 => Precision::Fp8,
            PrecisionName::Mxfp8 => Precision::Mxfp8,
        }
    }
}

fn release(text: &str) -> Result<Release, String> {
    Release::parse(text).ok_or_else(|| "a release is a year and a month, like 26.02".into())
}

pub fn simulate(args: Args) -> Result<(), Failure> {
    let written = outputs(&args);
    can_write_all(&reads(&args), &written)?;
    let prints_file = written.iter().any(|(_, path)| path.is_some_and(is_stdout));
    let SetUp { cluster, file, mut options, budget, precision } = args.on.set_up()?;
    let cluster = args.release.into_iter().fold(cluster, Cluster::of_release);
    let (framework, mut differences) = system(&args, &cluster, &mut options)?;
    let (ep, pp, chunks) = (options.strategy.ep, options.strategy.pp, u64::from(options.strategy.vpp));
    let room = options.strategy.max_tokens_per_rank;
    let is_bounded = ep <= 1 || room.is_some();
    let precision = args.precision.map_or(precision, Precision::from);
    let price = ValuePricer::new(&cluster, precision, 1.0);
    options.clock = forebay_sim::clock(&cluster, precision);
    let spinner = Spinner::new(args.json, "compiling");
    let profile = options.rewrite.profile.clone();
    let price = plan_prices(&price, &cluster, budget, &profile);
    // Where a plan of ours has room for the worst case, other systems allocate what comes. (A plan that is written is one of ours, which is run.)
    let is_another = args.framework.is_some() && !framework.is_ours();
    if is_another && !is_bounded && args.output.is_none() {
        let of_any_room = memory::compile(&file, &options, None, price, &spinner)?.plan;
        if let Some((rows, told)) = rows_that_come(&args, &of_any_room, &framework, ep)? {
            options.strategy.max_tokens_per_rank = Some(rows);
            differences.push(told);
        }
    }
    let compiled = memory::compile(&file, &options, budget, price, &spinner)?;
    let imbalance = uneven(&args, &compiled.plan, &framework, ep)?;
    differences.extend(filled_up(&framework, &compiled.plan));
    let is_worst_case = ep > 1 && options.strategy.max_tokens_per_rank.is_none();
    let (mut plan, strategy) = (compiled.plan, compiled.strategy.to_string());
    // (What is written is what is run, whatever the data.)
    let as_run = args.output.as_ref().map(|_| plan.to_bytes());
    let documents = documents(args.document_tokens, &mut plan, &framework)?;
    spinner.says("simulating");
    let options = Options {
        framework: framework.for_models(!has_experts(&plan)).for_chunks(chunks),
        precision,
        imbalance,
        recompute: Recompute::default(),
        fidelity: if args.instructions { Fidelity::Instructions } else { Fidelity::Calls },
        without: true,
        crowded: vec![],
        straggler: None,
    };
    if let Some(few) = room.and_then(|room| fewer_rows(&plan, options.imbalance, room)) {
        return Err(Failure::Input(few));
    }
    // Ranks of a machine that was measured share it.
    let cluster = forebay_sim::shared::settled(&plan, &cluster, &options).map_err(Failure::Input)?;
    let slow = args.straggler.map(|slow| placed(slow, &plan, &cluster, &options)).transpose()?;
    let (straggler, slow) = slow.map_or((None, None), |(straggler, told)| (Some(straggler), Some(told)));
    let options = Options { straggler, ..options };
    let room = Room { device: cluster.device.usable_bytes(), budget };
    let mut report = forebay_sim::simulate(&plan, &cluster, &options).map_err(Failure::Input)?;
    let options = Options { crowded: report.crowded_stages(), ..options };
    let timeline = forebay_sim::timeline(&plan, &cluster, &options).map_err(Failure::Input)?;
    timeline.locate_peaks(&plan, &mut report);
    report.phases = timeline.phases();
    drop(spinner);
    let mut notes = notes(&plan, &cluster, &options);
    notes.extend(args.release.and_then(|_| no_gain(&cluster)));
    notes.extend(slow);
    notes.extend(documents);
    notes.extend(differences);
    notes.extend(unaligned(&plan, &cluster));
    notes.extend(few_micro_batches(&plan, pp));
    notes.extend(short_of_memory(&report, room, &options.framework.name));
    let page = Page {
        plan: &plan,
        cluster: &cluster,
        room,
        strategy,
        report: &report,
        notes: &notes,
        timeline: &timeline,
        options: &options,
    };
    files(&args, &page)?;
    if let (Some(path), Some(bytes)) = (&args.output, as_run) {
        write_out(path, &bytes)?;
    }
    match (prints_file, args.json) {
        (true, _) => Ok(()),
        (false, true) => print_json(&Told::new(&page)),
        (false, false) => print(&in_words(&page, is_worst_case)),
    }
}

/// What a person reads: the table, and notes.
fn in_words(page: &Page, is_worst_case: bool) -> String {
    let notes: String = page.notes.iter().map(|note| format!("\n  = note: {note}\n")).collect();
    let worst = if is_worst_case { worst_case(page.plan) } else { None };
    format!("{}{notes}", table(page, worst.as_deref()))
}

/// The rows that come to the experts of the busiest rank, where there are any, with a sentence that says so.
fn rows_that_come(args: &Args, plan: &Plan, system: &Framework, ep: u32) -> Result<Option<(u64, String)>, Failure> {
    let Some(even) = even_rows(plan) else { return Ok(None) };
    let imbalance = uneven(args, plan, system, ep)?;
    let rows = (even as f64 * imbalance).ceil() as u64;
    let routing = if imbalance > 1.0 { "uneven" } else { "even" };
    let name = &system.name;
    let told =
        format!("{name} allocates what comes to a rank's experts: max_tokens_per_rank={rows}, by an {routing} routing");
    Ok(Some((rows, told)))
}

/// Rows of the busiest rank as a multiple of the mean: even where nothing is said, and what experts have room for where the system gives them a capacity.
fn uneven(args: &Args, plan: &Plan, system: &Framework, ep: u32) -> Result<f64, Failure> {
    let said = args.tokens_per_expert.as_deref().map_or(Ok(1.0), |load| imbalance(load, plan, ep))?;
    Ok(if system.fills_up() { system.capacity } else { said })
}

/// That the rows which experts compute do not depend on how tokens fall, where that is so.
fn filled_up(system: &Framework, plan: &Plan) -> Option<String> {
    let room = match system.capacity {
        1.0 => "the rows of an even routing".to_string(),
        times => format!("{times} times the rows of an even routing"),
    };
    (system.fills_up() && has_experts(plan)).then(|| {
        format!("{} gives experts room for {room}, and fills it up: how tokens fall does not matter", system.name)
    })
}

/// The system that runs the step: our own plan, or another, with what that changes.
fn system(args: &Args, cluster: &Cluster, options: &mut CompileOptions) -> Result<(Framework, Vec<String>), Failure> {
    let named = args.framework.as_ref().map(|name| framework(name, args.on.folder().as_deref())).transpose()?;
    Ok(match named {
        Some(another) if !another.is_ours() => of_another(another, options),
        ours => (ours.unwrap_or_default().on(cluster), vec![]),
    })
}

/// Makes options those of another system's plan, and says what that changes. What it hides is in its profile; our passes are not part of it, nor is what we keep of gradients and for the backward
/// pass.
fn of_another(mut framework: Framework, options: &mut CompileOptions) -> (Framework, Vec<String>) {
    let (name, keep, strategy) = (framework.name.clone(), framework.keep(), &mut options.strategy);
    let mut told = vec![];
    if !framework.streams {
        told.push(format!(
            "{name} runs kernels one after another, and hides what its profile says: our overlap passes are off"
        ));
        strategy.overlap = Passes::none();
    }
    if strategy.keep != keep {
        told.push(format!(
            "what {name} keeps for the backward pass is in its profile: its plan is made with keep={keep}"
        ));
    }
    let shares = strategy.dp * strategy.cp > 1;
    if framework.gathers_once && strategy.pp > 1 && strategy.zero > 1 {
        if shares {
            let zero = strategy.zero;
            told.push(format!("beneath pipelines {name} gathers parameters once a step: zero={zero} is zero=1 there"));
        }
        (strategy.zero, framework.prefetch) = (1, true);
    }
    // What systems do that share these (arXiv 2304.11277, section 3.3).
    if strategy.zero > 1 && shares && !framework.prefetch {
        framework.prefetch = true;
        told.push(format!("{name} is taken to gather parameters a layer ahead, and to sum gradients behind layers"));
    }
    options.gradients = Gradients::Wide;
    strategy.keep = keep;
    (framework, told)
}

/// Rows that an even routing brings to a rank.
fn even_rows(plan: &Plan) -> Option<u64> {
    let rows = |i: &Instruction| match &i.kernel {
        Kernel::AllToAllV(k) => Some(k.even),
        _ => None,
    };
    plan.programs.iter().flat_map(|p| &p.instructions).filter_map(rows).max()
}

/// How rooms of experts can be smaller than the worst case.
fn worst_case(plan: &Plan) -> Option<String> {
    Some(format!(
        "experts have room for the worst case, all rows of their group; max_tokens_per_rank=N in the strategy bounds them (an even routing brings {} to a rank)",
        grouped(even_rows(plan)?)
    ))
}

/// Does the plan have rows that routers send to experts?
fn has_experts(plan: &Plan) -> bool {
    let mut kernels = plan.programs.iter().flat_map(|program| &program.instructions).map(|i| &i.kernel);
    kernels.any(|kernel| kernel.ragged_rows().is_some())
}

/// What is read, and from which files.
fn reads(args: &Args) -> Vec<(&'static str, PathBuf)> {
    let load = args.tokens_per_expert.as_ref().map(|file| ("--tokens-per-expert", PathBuf::from(file)));
    let profiles = args.framework.as_ref().and_then(|_| args.on.folder());
    let profiles = profiles.map(|folder| ("the profiles", folder.join(cluster::PROFILES)));
    args.on.reads().into_iter().chain(load).chain(profiles).collect()
}

/// What is written, and by which options.
fn outputs(args: &Args) -> [(&'static str, Option<&Path>); 3] {
    [("--trace", args.trace.as_deref()), ("--html", args.html.as_deref()), ("--output", args.output.as_deref())]
}

/// What a reader of the numbers should know.
fn notes(plan: &Plan, cluster: &Cluster, options: &Options) -> Vec<String> {
    let mut notes = vec![];
    let fp8 = matches!(options.precision, Precision::Fp8 | Precision::Mxfp8);
    if fp8 && cluster.device.cube.fp8.is_none() {
        notes.push(format!(
            "{} has no fp8 products: they are priced at the bf16 peak, and scaling is paid besides",
            cluster.device.name
        ));
    }
    let domains = domains(cluster, &plan.mesh);
    for (n, tier) in cluster.tiers.iter().enumerate().filter(|(n, _)| domains.used(*n) < cluster.domain(*n)) {
        notes.push(format!(
            "a {} has {} devices, of which {} are used: as many as whole parts of these ranks fill",
            tier.name,
            cluster.domain(n),
            domains.used(n)
        ));
    }
    if cluster.calibrated.estimated {
        notes.push(format!(
            "how much of its peaks {} sustains is an estimate that was not fitted to runs; `forebay validate --anchor RUN` or `--fit` takes it from measured ones",
            cluster.device.name
        ));
    }
    if let Some(release) = cluster.calibrated.release.filter(|_| cluster.calibrated.yearly_gain.0 > 0.0) {
        notes.push(format!(
            "kernels of {} are those of software of {release}, and take {:.0} % less in a year; --release has others",
            cluster.device.name,
            100.0 * (1.0 - 1.0 / (1.0 + cluster.calibrated.yearly_gain.0))
        ));
    }
    if plan.settings.compute == DType::F64 {
        notes.push("cluster files have no rate of f64: it is priced at that of f32, with twice the bytes".into());
    }
    notes
}

/// Lets attention that stays within documents see as much as these have, and says what they are taken to have.
fn documents(tokens: Option<u64>, plan: &mut Plan, framework: &Framework) -> Result<Option<String>, Failure> {
    let row = plan.settings.seq;
    let any = stay_within(plan, tokens.unwrap_or(row), Within::Marked);
    let whole = if framework.attention == AttentionName::Unfused {
        format!("; {} writes all scores of a row to memory, whatever is masked", framework.name)
    } else {
        String::new()
    };
    match tokens {
        Some(_) if !any => Err(Failure::Input(
            "--document-tokens: no causal attention of this model stays within documents\n  = help: it does with `documents` among the model's inputs and `doc = documents` in a call of `attention` or `mla`: docs/language.md, \"Inputs\"".into(),
        )),
        Some(tokens) => {
            Ok(Some(format!("attention is within documents of {} tokens in the mean{whole}", tokens.min(row))))
        }
        None => Ok(any.then(|| "attention within documents is priced as if each filled a row; --document-tokens says how long they are".into())),
    }
}

/// That a release is named in vain.
fn no_gain(cluster: &Cluster) -> Option<String> {
    let gains = cluster.calibrated.yearly_gain.0 > 0.0;
    (!gains)
        .then(|| format!("--release changes nothing: kernels of {} are as fast in all of them", cluster.device.name))
}

/// With fewer micro-batches than stages most stages wait most of the time, which nobody asks for on purpose.
fn few_micro_batches(plan: &Plan, stages: u32) -> Option<String> {
    let n = plan.settings.micro_batches;
    (n < stages).then(|| {
        let (have, verb) = if n == 1 { ("one micro-batch", "fills") } else { (&*format!("{n} micro-batches"), "fill") };
        format!("{have} hardly {verb} {stages} stages: a smaller mbs or a larger micro in the strategy makes more of the same batch")
    })
}

/// What fits may do so only because an allocator gives back what it would rather keep, and what takes long may do so for that.
fn short_of_memory(report: &Report, room: Room, framework: &str) -> Vec<String> {
    let stages: Vec<String> = report.crowded_stages().iter().map(u32::to_string).collect();
    let is_short = report.short_of_memory().filter(|_| report.peak_bytes() <= room.bytes());
    let reserves = is_short.map(|wanted| {
        let slower = if stages.is_empty() { ", or take longer than is predicted here" } else { "" };
        format!(
            "the allocator of {framework} would reserve {}, and programs may use {}: it may not fit all the same (most such runs that are known ran out of memory){slower}",
            size(wanted),
            size(room.device)
        )
    });
    let stops = (!stages.is_empty()).then(|| {
        format!(
            "the allocator of {framework} stops the device for each micro-batch to get memory back, {REGAIN_S} s as a part of the wait for the host (stage{} {})",
            if stages.len() == 1 { "" } else { "s" },
            stages.join(", ")
        )
    });
    reserves.into_iter().chain(stops).collect()
}

/// Writes what `--trace`, `--html` and `--output` ask for.
fn files(args: &Args, page: &Page) -> Result<(), Failure> {
    if let Some(path) = &args.trace {
        let trace = simulated::json(page.plan, page.timeline, simulated::MAX_EVENTS);
        write_out(path, trace.text.as_bytes())?;
        let name = if is_stdout(path) { "--trace".into() } else { path.display().to_string() };
        say!("{name}: {}", trace.about);
    }
    if let Some(path) = &args.html {
        write_out(path, page::html(page).as_bytes())?;
        if !is_stdout(path) {
            say!("{}: open it in a browser", path.display());
        }
    }
    Ok(())
}

/// A profile: one that is built in, or of the folder that the cluster file is in.
fn framework(name: &str, folder: Option<&Path>) -> Result<Framework, Failure> {
    let known = cluster::profiles(folder)?;
    let mut names: Vec<&str> = known.iter().map(|f| f.name.as_str()).collect();
    names.sort_unstable();
    known
        .iter()
        .find(|f| f.name.eq_ignore_ascii_case(name))
        .cloned()
        .ok_or_else(|| Failure::Usage(format!("--framework {name}: there are {}", names.join(", "))))
}

fn table(page: &Page, hint: Option<&str>) -> String {
    let Page { plan, cluster, room, report, .. } = *page;
    let mut out = format!(
        "{} on {} × {}\n{}\n{}\n\n  step           {}\n  tokens         {:.0} a second and device\n  MFU            {} of bf16 peak; causal attention at half, recomputation not counted\n  HFU            {} of bf16 peak; all that is computed\n  bubble         {}\n  host-bound     {}; a host waits for its device {:.1} times a step\n\n",
        plan.model,
        grouped(report.devices),
        cluster.device.name,
        page::subtitle(page),
        page::manner(page),
        seconds(report.step_time_s),
        report.tokens_per_s_per_device,
        percent(report.mfu),
        percent(report.hfu),
        percent(report.bubble_fraction),
        percent(report.host_bound_fraction),
        report.host_syncs,
    );
    let mut communication = Table::new(&["communication", "exposed", "in all", "bytes exposed", "bytes in all"]);
    for kind in report.communication() {
        let times = [kind.exposed_s, kind.total_s].map(seconds);
        let bytes = [kind.exposed_bytes, kind.total_bytes].map(size);
        communication.row([&[kind.name.to_string()][..], &times, &bytes].concat());
    }
    for link in &report.comm_by_link {
        let times = [link.exposed_s, link.total_s].map(seconds);
        communication.row([&[format!("over {}", link.link)][..], &times, &[String::new(), String::new()]].concat());
    }
    out += &communication.render();
    if !report.phases.is_empty() {
        let (names, rows) = page::phase_cells(report);
        let mut phases = Table::new(&names);
        rows.into_iter().for_each(|row| phases.row(row));
        out += &format!("\n{}", phases.render());
    }
    let on_host = report.memory_bytes.iter().any(|m| m.host > 0.0);
    let mut heading = vec![
        "memory of stage",
        "weights",
        "gradients",
        "optimizer",
        "activations",
        "buffers",
        "fragmentation",
        "peak",
        "at",
    ];
    heading.extend(on_host.then_some("on host"));
    let mut memory = Table::new(&heading);
    for m in &report.memory_bytes {
        let kinds = [m.weights, m.gradients, m.optimizer, m.activations, m.buffers, m.fragmentation, m.peak].map(size);
        let at = m.located.as_ref().map_or_else(String::new, |p| seconds(p.peak_time_s));
        let mut row = [vec![m.stage.to_string()], kinds.to_vec(), vec![at]].concat();
        row.extend(on_host.then(|| size(m.host)));
        memory.row(row);
    }
    out += &format!("\n{}", memory.render());
    let peak = report.peak_bytes();
    let (judged, fits) = (room.judged(peak), peak <= room.bytes());
    out += &format!("{}{}\n\n", judged[..1].to_uppercase(), &judged[1..]);
    if let (false, Some(hint)) = (fits, hint) {
        out += &format!("  = help: {hint}\n\n");
    }
    let mut costs = Table::new(&["costs most", "takes", "without it, the step is shorter by"]);
    for cost in &report.costs {
        costs.row(vec![
            cost.what.into(),
            seconds(cost.seconds),
            format!("{} ({})", seconds(cost.gives_back), percent(cost.gives_back / report.step_time_s)),
        ]);
    }
    out + &costs.render()
        + "What takes so long is counted by itself, as a mean of the stages. The step is simulated again without it and without starting its kernels,\nand stages wait less for each other then: it can be shorter by more.\n"
}
