//! Plans for people: what `forebay plan show` prints. Works on any plan that can be [parsed](Plan::parse), also on one that cannot be verified.

use crate::file::excerpt;
use crate::kernel::*;
use crate::schema::*;
use std::fmt::{self, Display, Formatter, Write};

/// A line of text.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => { push($out, format_args!($($arg)*)) };
}

/// The whole plan: [`summary`], every program with its instructions, every phase with its calls.
pub fn text(plan: &Plan) -> String {
    let mut text = summary(plan);
    for program in &plan.programs {
        text += &format!("\n{}", program_over(program, &plan.mesh));
    }
    for role in &plan.roles {
        text += &format!("\n{}", self::role(plan, role));
    }
    text
}

/// What one rank does, functions of coordinates as the values they have there; `None` when there is no such rank.
pub fn rank(plan: &Plan, rank: u32) -> Option<String> {
    let mut rest = u64::from(rank);
    let mut at = vec![0; plan.mesh.len()];
    for (here, dim) in at.iter_mut().zip(&plan.mesh).rev() {
        let size = u64::from(dim.size.max(1));
        (*here, rest) = ((rest % size) as u32, rest / size);
    }
    let is_here = |role: &&Role| role.coordinates.iter().zip(&at).all(|((lo, hi), at)| (lo..hi).contains(&at));
    let mut role = plan.roles.iter().find(is_here).filter(|_| rest == 0)?.clone();
    let set = |affine: &mut Affine| *affine = Affine::constant(affine.at(&at));
    role.coordinates = at.iter().map(|at| (*at, at + 1)).collect();
    role.phases.iter_mut().flat_map(|p| &mut p.feeds).for_each(|feed| set(&mut feed.first_row));
    let called: std::collections::HashSet<u32> = role.phases.iter().flat_map(|p| &p.calls).map(|c| c.program).collect();
    let mut text = summary(plan);
    parts(&mut text, &role, &at);
    for program in (0..).zip(&plan.programs).filter(|(number, _)| called.contains(number)).map(|(_, program)| program) {
        let mut program = program.clone();
        for instruction in &mut program.instructions {
            if let Kernel::Coordinate(k) = &mut instruction.kernel {
                set(&mut k.value);
            }
        }
        text += &format!("\n{}", program_over(&program, &plan.mesh));
    }
    Some(text + &format!("\n{}", self::role(plan, &role)))
}

/// What a rank has of tensors that are not whole there.
fn parts(out: &mut String, role: &Role, coordinates: &[u32]) {
    let cut = |t: &&Tensor| !t.block.is_empty() || t.range.is_some();
    for (i, tensor) in role.tensors.iter().filter(cut).enumerate() {
        if i == 0 {
            line!(out, "\nparts of tensors");
        }
        let starts: Vec<u64> = tensor.block_start(coordinates).collect();
        let ranges =
            starts.iter().zip(tensor.local_dims()).map(|(start, n)| format!("{start}..{}", start.saturating_add(n)));
        let held = tensor.held(coordinates);
        let of = if tensor.range.is_some() { format!(", elements {}..{}", held.from, held.to) } else { String::new() };
        let (kind, block) = (json_name(&tensor.kind), ranges.collect::<Vec<_>>().join(", "));
        let whose = if tensor.space == Space::Host { " of the host" } else { "" };
        let (name, dtype) = (name(&tensor.name), tensor.dtype);
        line!(out, "  {name:<32} {kind:<15} {dtype} [{block}]{of} at byte {}{whose}", held.offset);
    }
}

/// What it was compiled for, and where the memory goes.
pub fn summary(plan: &Plan) -> String {
    let s = &plan.settings;
    let mut out = format!("plan {}, version {}\n", name(&plan.model), plan.version);
    let packed = if s.packed { ", packed documents" } else { "" };
    line!(
        &mut out,
        "  step        {} rows of {} tokens, {} micro-batches, {}{packed}",
        s.batch,
        s.seq,
        s.micro_batches,
        s.compute
    );
    line!(
        &mut out,
        "  parameters  {} ({} take part in a token), vocabulary {}",
        Count(s.params as f64, ""),
        Count(s.active_params as f64, ""),
        s.vocab
    );
    line!(&mut out, "  work        {} a step, schedule of {} steps", Count(s.flops_per_step, "FLOP"), s.steps);
    if !plan.mesh.is_empty() {
        let dims: Vec<String> = plan.mesh.iter().map(|d| format!("{} = {}", name(&d.name), d.size)).collect();
        line!(&mut out, "  mesh        {}", dims.join(", "));
    }
    let instructions: usize = plan.programs.iter().map(|p| p.instructions.len()).sum();
    line!(&mut out, "  programs    {}, {instructions} instructions", plan.programs.len());
    tensors(&mut out, plan);
    plan.roles.iter().for_each(|role| memory(&mut out, role));
    out
}

/// Tensors by kind: those of all ranks, each once and as a whole.
fn tensors(out: &mut String, plan: &Plan) {
    let mut kinds: std::collections::BTreeMap<TensorKind, (usize, u64)> = Default::default();
    let mut seen = std::collections::HashSet::new();
    for tensor in plan.roles.iter().flat_map(|r| &r.tensors).filter(|t| seen.insert((&t.name, t.kind))) {
        let (n, total) = kinds.entry(tensor.kind).or_default();
        (*n, *total) = (*n + 1, total.saturating_add(tensor.bytes()));
    }
    line!(out, "\ntensors");
    for (kind, (n, total)) in kinds {
        line!(out, "  {:<15} {n:>6}  {:>10}", json_name(&kind), Bytes(total));
    }
}

/// The memory table of a role: one column for each phase.
fn memory(out: &mut String, role: &Role) {
    let head: String = role.phases.iter().fold(String::new(), |line, p| line + &format!("  {:>10}", name(&p.name)));
    line!(out, "\nmemory of role {:<12}{head}", name(&role.name));
    let row = |m: &MemoryUse| [m.weights, m.gradients, m.optimizer, m.other, m.activations, m.placed, m.live_peak];
    let names = ["weights", "gradients", "optimizer", "other", "activations", "placed", "live at most"];
    for (i, what) in names.into_iter().enumerate() {
        let cells = role
            .phases
            .iter()
            .fold(String::new(), |line, p| line + &format!("  {:>10}", Bytes(row(&p.memory)[i]).to_string()));
        line!(out, "  {what:<25}{cells}");
    }
    line!(
        out,
        "  device arena {}, of which {} persistent; host arena {}{}",
        Bytes(role.device_bytes),
        Bytes(role.persistent_bytes),
        Bytes(role.host_bytes),
        match role.host_persistent_bytes {
            0 => String::new(),
            bytes => format!(", of which {} persistent", Bytes(bytes)),
        }
    );
}

/// A program: its slots, then its instructions, one on a line. Mesh dimensions are shown by number.
pub fn program(program: &Program) -> String {
    program_over(program, &[])
}

fn program_over(program: &Program, mesh: &[MeshDim]) -> String {
    let flops: f64 = program.instructions.iter().map(|i| i.kernel.flops()).sum();
    let bytes =
        program.instructions.iter().fold(0u64, |n, i| n.saturating_add(i.kernel.traffic(&program.buffers).bytes()));
    let mut out = format!(
        "program {}: {} instructions, {}, {} touched\n",
        name(&program.name),
        program.instructions.len(),
        Count(flops, "FLOP"),
        Bytes(bytes)
    );
    for slot in &program.slots {
        let host = if slot.space == Space::Host { " (host)" } else { "" };
        line!(&mut out, "  {:<8} {:<28} {:>10}{host}", json_name(&slot.access), name(&slot.name), Bytes(slot.bytes));
    }
    for (at, instruction) in program.instructions.iter().enumerate() {
        let stream = program.streams.get(instruction.stream as usize).map_or("?".into(), json_name);
        let stream = if instruction.captured { format!("+{stream}") } else { stream };
        let kernel = &instruction.kernel;
        let what = excerpt(&instruction.name);
        line!(
            &mut out,
            "  {at:>4} {stream:<10} {:<11} {what:<28} {}{}",
            kernel.name(),
            Shape(kernel, mesh),
            Events(instruction)
        );
    }
    out
}

/// A role: its phases with their calls, runs of one program in one line.
fn role(plan: &Plan, role: &Role) -> String {
    let mut out = format!("role {}", name(&role.name));
    for (dim, (lo, hi)) in plan.mesh.iter().zip(&role.coordinates) {
        let _ = write!(out, ", {} {lo}..{hi}", name(&dim.name));
    }
    out.push('\n');
    role.phases.iter().for_each(|p| phase(&mut out, plan, role, p));
    out
}

fn phase(out: &mut String, plan: &Plan, role: &Role, phase: &Phase) {
    line!(
        out,
        "  phase {}: {} rows of {} tokens, {} calls",
        name(&phase.name),
        phase.rows,
        phase.seq,
        phase.calls.len()
    );
    for feed in &phase.feeds {
        line!(
            out,
            "    feed   {:<12} rows {} + {} at byte {}",
            name(&feed.input),
            Sum(&plan.mesh, &feed.first_row),
            feed.rows,
            feed.offset
        );
    }
    for scalar in &phase.scalars {
        line!(out, "    scalar {:<12} at byte {}", json_name(&scalar.scalar), scalar.offset);
    }
    let mut at = 0;
    while at < phase.calls.len() {
        let run = run_length(phase, at);
        if at == phase.commit as usize {
            line!(out, "    ── commit ──");
        }
        line!(out, "    {at:>6} {}", Run { plan, role, calls: &phase.calls[at..at + run] });
        at += run;
    }
    for report in &phase.reports {
        let when = if report.before_commit { ", before the commit" } else { "" };
        line!(out, "    report {:<12} {} at byte {}{when}", name(&report.name), report.dtype, report.offset);
    }
    for output in &phase.outputs {
        line!(
            out,
            "    output {:<12} {} {} at byte {}",
            name(&output.name),
            output.dtype,
            Dims(&output.dims),
            output.offset
        );
    }
}

/// How many calls from here on run one program for one micro-batch; a run does not cross the commit.
fn run_length(phase: &Phase, at: usize) -> usize {
    let first = &phase.calls[at];
    let alike = |(i, call): &(usize, &Call)| {
        let commit = *i > 0 && at + i == phase.commit as usize;
        !commit && (call.program, call.micro_batch) == (first.program, first.micro_batch)
    };
    phase.calls[at..].iter().enumerate().take_while(alike).count()
}

struct Run<'a> {
    plan: &'a Plan,
    role: &'a Role,
    calls: &'a [Call],
}

impl Display for Run<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let (first, last) = (&self.calls[0], &self.calls[self.calls.len() - 1]);
        let program = self.plan.programs.get(first.program as usize).map_or("?".into(), |p| name(&p.name));
        let times = if self.calls.len() > 1 { format!(" × {}", self.calls.len()) } else { String::new() };
        let layer = |call: &Call| self.role.layers.get(call.layer as usize).map_or("?".into(), |l| name(l));
        let layers =
            if first.layer == last.layer { layer(first) } else { format!("{} … {}", layer(first), layer(last)) };
        write!(f, "{:<36} {layers}, micro-batch {}", program + &times, first.micro_batch)
    }
}

/// An affine function in words: `4 + 2·dp`.
struct Sum<'a>(&'a [MeshDim], &'a Affine);

impl Display for Sum<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Sum(mesh, affine) = self;
        write!(f, "{}", affine.base)?;
        for (dim, factor) in affine.terms.iter().filter(|(_, factor)| *factor != 0) {
            write!(f, " + {factor}·{}", dim_name(mesh, *dim))?;
        }
        Ok(())
    }
}

fn dim_name(mesh: &[MeshDim], dim: u32) -> String {
    mesh.get(dim as usize).map_or_else(|| format!("#{dim}"), |d| name(&d.name))
}

struct Events<'a>(&'a Instruction);

impl Display for Events<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        if !self.0.waits.is_empty() {
            let waits: Vec<String> = self.0.waits.iter().map(|e| format!("e{e}")).collect();
            write!(f, "  after {}", waits.join(", "))?;
        }
        self.0.records.map_or(Ok(()), |e| write!(f, "  → e{e}"))
    }
}

/// The sizes of a kernel, in a few words; it may name dimensions of a mesh.
struct Shape<'a>(&'a Kernel, &'a [MeshDim]);

impl Display for Shape<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self.0 {
            Kernel::Matmul(k) => matmul(f, k),
            Kernel::Region(k) => region(f, k),
            Kernel::Attention(k) => attention(f, &k.inputs),
            Kernel::AttentionBackward(k) => attention(f, &k.inputs),
            Kernel::LinearAttention(k) => linear_attention(f, k),
            Kernel::Reduce(k) => {
                let over = k.dims.get(k.kept as usize..).unwrap_or_default();
                let ragged = if k.ragged.is_some() { ", ragged" } else { "" };
                write!(f, "{} {} over {}{ragged}{}", json_name(&k.op), Dims(&k.dims), Dims(over), added(k.accumulate))
            }
            Kernel::Scan(k) => {
                write!(f, "{}{}", Dims(&[k.outer, k.n, k.inner]), if k.backward { ", backward" } else { "" })
            }
            Kernel::Gather(k) => write!(f, "{} of {}{}", Dims(&k.dims), k.axis_size, ragged(&k.ragged)),
            Kernel::ScatterAdd(k) => {
                write!(f, "{} into {}{}{}", Dims(&k.dims), k.axis_size, ragged(&k.ragged), added(k.accumulate))
            }
            Kernel::TopK(k) => write!(f, "{} of {}, {} times", k.k, k.n, k.outer.saturating_mul(k.inner)),
            Kernel::Group(k) => write!(f, "[{}] in {} groups", k.elements, k.groups),
            Kernel::Offsets(k) => write!(f, "[{}] in {} groups", k.elements, k.groups),
            Kernel::Invert(k) => write!(f, "[{}]", k.elements),
            Kernel::RowGroups(k) => write!(f, "[{}] in {} groups", k.rows, k.groups),
            Kernel::Random(k) => write!(f, "{} site {}", Dims(&k.dims), k.site),
            Kernel::RandomKey { .. } => Ok(()),
            Kernel::Exchange(k) => {
                let combined = k.reduce.map_or(String::new(), |op| format!(" {}", json_name(&op)));
                let over = Group(self.1, &k.group);
                write!(
                    f,
                    "{}{combined} over {over}: {} {}{}",
                    k.kind().name(),
                    Dims(&k.dims),
                    k.dtype,
                    ragged(&k.ragged)
                )
            }
            Kernel::AllToAllV(k) => {
                let (over, way) = (Group(self.1, &k.group), json_name(&k.direction));
                write!(f, "{way} over {over}: {} in {} groups {}", Dims(&[k.bound, k.row]), k.experts, k.dtype)
            }
            Kernel::Coordinate(k) => write!(f, "{}", Sum(self.1, &k.value)),
            Kernel::Send(k) => message(f, k, "to", self.1),
            Kernel::Recv(k) => message(f, k, "from", self.1),
        }
    }
}

fn message(f: &mut Formatter, k: &Message, way: &str, mesh: &[MeshDim]) -> fmt::Result {
    write!(f, "[{}] {} {way} {} = {}, channel {}", k.elements, k.dtype, dim_name(mesh, k.dim), k.peer, k.channel)
}

/// Mesh dimensions: `dp × tp`.
struct Group<'a>(&'a [MeshDim], &'a [u32]);

impl Display for Group<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let dims: Vec<String> = self.1.iter().map(|dim| dim_name(self.0, *dim)).collect();
        f.write_str(&dims.join(" × "))
    }
}

fn matmul(f: &mut Formatter, k: &Matmul) -> fmt::Result {
    let batch: Vec<u64> = k.batch.iter().map(|d| d.0).filter(|n| *n != 1).collect();
    let sums = k.k_outer.iter().fold(k.k.0, |n, d| n.saturating_mul(d.0));
    if !batch.is_empty() {
        write!(f, "{} × ", Dims(&batch))?;
    }
    write!(f, "{}·{}", Dims(&[k.m.0, sums]), Dims(&[sums, k.n.0]))?;
    if let Some(groups) = &k.groups {
        let of = match groups.ragged {
            RaggedDim::M => "rows",
            RaggedDim::K => "terms",
            RaggedDim::N => "columns",
        };
        write!(f, " in {} groups of {of}", groups.count)?;
    }
    write!(f, " {}{}", k.dtype, added(k.accumulate))?;
    k.epilogue.as_ref().map_or(Ok(()), |epilogue| {
        write!(f, ", then ")?;
        region(f, epilogue)
    })
}

fn attention(f: &mut Formatter, k: &AttentionInputs) -> fmt::Result {
    let batch: Vec<u64> = k.batch.iter().copied().filter(|n| *n != 1).collect();
    if !batch.is_empty() {
        write!(f, "{} × ", Dims(&batch))?;
    }
    let sizes: Vec<String> = k.pairs.iter().map(|p| p.size.to_string()).collect();
    write!(f, "{} of {} → {}", Dims(&[k.queries, k.keys]), sizes.join("+"), k.value_size)?;
    if k.causal {
        write!(f, ", causal")?;
    }
    if k.window > 0 {
        write!(f, ", window {}", k.window)?;
    }
    let documents = if k.documents.is_some() { ", documents" } else { "" };
    let sink = if k.sink.is_some() { ", sink" } else { "" };
    let positions = if k.positions.is_some() { ", positions" } else { "" };
    write!(f, "{documents}{sink}{positions} {}", k.dtype)
}

fn linear_attention(f: &mut Formatter, k: &LinearAttention) -> fmt::Result {
    let batch: Vec<u64> = k.batch.iter().copied().filter(|n| *n != 1).collect();
    if !batch.is_empty() {
        write!(f, "{} × ", Dims(&batch))?;
    }
    let [keys, values] = [&k.keys, &k.values].map(|dims| dims.iter().fold(1u64, |n, d| n.saturating_mul(*d)));
    let way = if k.backward { ", backward" } else { "" };
    let wide = if k.result == k.dtype { String::new() } else { format!(" → {}", k.result) };
    write!(f, "[{}] of {keys} → {values}, {}{way} {}{wide}", k.positions, json_name(&k.reads), k.dtype)
}

fn region(f: &mut Formatter, k: &Region) -> fmt::Result {
    const MOST: usize = 8;
    let mut steps: Vec<String> = k.steps.iter().take(MOST).map(|s| step(s.op)).collect();
    if k.steps.len() > MOST {
        steps.push(format!("… {} more", k.steps.len() - MOST));
    }
    let steps = if steps.is_empty() { "copy".into() } else { steps.join(" ") };
    write!(f, "{}{}  {}", Dims(&k.dims), ragged(&k.ragged), k.loads.len())?;
    let looked_up = k.loads.iter().filter(|l| l.through.is_some()).count();
    if looked_up > 0 {
        write!(f, " ({looked_up} by index)")?;
    }
    write!(f, " → {}: {steps}", k.stores.len())
}

fn step(op: StepOp) -> String {
    match op {
        StepOp::Index(dim) => format!("index{dim}"),
        op => json_name(&op),
    }
}

fn ragged(limit: &Option<RaggedLimit>) -> &'static str {
    if limit.is_some() { ", ragged" } else { "" }
}

fn added(accumulate: bool) -> &'static str {
    if accumulate { ", added" } else { "" }
}

struct Dims<'a>(&'a [u64]);

impl Display for Dims<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let dims: Vec<String> = self.0.iter().map(u64::to_string).collect();
        write!(f, "[{}]", dims.join("×"))
    }
}

/// A number of bytes, for people.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1023.95 && unit + 1 < units.len() {
            (value, unit) = (value / 1024.0, unit + 1);
        }
        f.pad(&format!("{value:.1} {}", units[unit]))
    }
}

/// A count with a decimal prefix: `1.5 M`.
struct Count(f64, &'static str);

impl Display for Count {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let prefixes = ["", "k", "M", "G", "T", "P", "E"];
        let Count(mut value, unit) = *self;
        let mut prefix = 0;
        while value >= 999.95 && prefix + 1 < prefixes.len() {
            (value, prefix) = (value / 1000.0, prefix + 1);
        }
        let digits = usize::from(prefix > 0);
        let text = format!("{value:.digits$} {}{unit}", prefixes[prefix]);
        f.write_str(text.trim_end())
    }
}

fn push(out: &mut String, line: fmt::Arguments) {
    let start = out.len();
    let _ = writeln!(out, "{line}");
    // Padding of a last column is of no use.
    let end = out[start..].trim_end().len() + start;
    out.truncate(end);
    out.push('\n');
}

fn name(name: &str) -> String {
    excerpt(name)
}

/// The name that a unit variant has in files.
pub(crate) fn json_name(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_string)).unwrap_or_default()
}
