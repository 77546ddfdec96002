//! Is there enough memory? That is asked before any of it is touched: systems promise more than they have, and end the process that relies on it.

use super::rank::Programs;
use super::{Arena, ExecError, Purpose};
use forebay_plan::{Form, MemoryUse, Role, Space, TensorKind};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Besides what the plan and its kernels need: buffers of files, and what allocators keep.
const PROGRAM: u64 = 32 << 20;
/// A worker's stack.
const STACK: u64 = 2 << 20;

/// The memory of the phase that takes most.
pub fn memory_by_kind(role: &Role) -> MemoryUse {
    role.phases.iter().map(|p| p.memory).max_by_key(|m| m.placed).unwrap_or_default()
}

/// What two ranks take together.
pub(super) fn total(a: MemoryUse, b: MemoryUse) -> MemoryUse {
    MemoryUse {
        weights: a.weights.saturating_add(b.weights),
        gradients: a.gradients.saturating_add(b.gradients),
        optimizer: a.optimizer.saturating_add(b.optimizer),
        other: a.other.saturating_add(b.other),
        activations: a.activations.saturating_add(b.activations),
        live_peak: a.live_peak.saturating_add(b.live_peak),
        placed: a.placed.saturating_add(b.placed),
    }
}

/// What one rank needs.
#[derive(Debug)]
pub(super) struct Need<'p> {
    role: &'p Role,
    /// Workspace of kernels and stacks of threads.
    besides: u64,
}

impl<'p> Need<'p> {
    /// That of a role whose kernels run elsewhere.
    pub fn of_memory(role: &'p Role) -> Need<'p> {
        Need { role, besides: 0 }
    }

    /// That of a role with so many workers.
    pub fn new(role: &'p Role, programs: &Programs, workers: usize) -> Need<'p> {
        Need { role, besides: programs.scratch.of_workers(workers).saturating_add(STACK * workers as u64) }
    }
}

/// The arenas of all ranks of this process, or an error that says where the bytes go.
pub(super) fn arenas(ranks: &[Need], purpose: Purpose) -> Result<Vec<(Arena, Arena)>, ExecError> {
    let error = enough(ranks, purpose)?;
    let arena = |bytes| Arena::new(bytes).ok_or_else(&error);
    ranks.iter().map(|Need { role, .. }| Ok((arena(role.device_bytes)?, arena(role.host_bytes)?))).collect()
}

/// Is there enough memory for all ranks of this process? Gives the error to say when the system refuses it all the same.
pub(super) fn enough(ranks: &[Need], purpose: Purpose) -> Result<impl Fn() -> ExecError, ExecError> {
    let mut by_kind = MemoryUse::default();
    let mut needed = PROGRAM;
    for Need { role, besides } in ranks {
        let mut kinds = memory_by_kind(role);
        let placed = role.host_bytes.saturating_add(role.device_bytes);
        // Pages that are never touched are never provided, so what counts is what the purpose uses.
        let unused = match purpose {
            Purpose::Train => 0,
            // Parameters in halves have a bit in the second moments.
            Purpose::Generate => {
                let halved = role.tensors.iter().any(|t| t.form == Form::LowerHalf);
                let part = |moments: u64| if halved { moments / 2 } else { moments };
                let moments = part(kinds.optimizer);
                kinds.optimizer -= moments;
                std::mem::take(&mut kinds.gradients) + moments + part(moments_of_host(role))
            }
        };
        needed = needed.saturating_add(placed.saturating_sub(unused)).saturating_add(*besides);
        by_kind = total(by_kind, kinds);
    }
    let available = available_memory();
    let count = ranks.len();
    let error = move || {
        let MemoryUse { weights, gradients, optimizer, activations, .. } = by_kind;
        let other = [weights, gradients, optimizer, activations].into_iter().fold(needed, u64::saturating_sub);
        ExecError::Memory { needed, available, by_kind: MemoryUse { other, ..by_kind }, ranks: count }
    };
    if available.is_some_and(|available| needed > available) {
        return Err(error());
    }
    Ok(error)
}

/// Bytes of the moments that are in the host's memory. (Those that share a place are counted once.)
fn moments_of_host(role: &Role) -> u64 {
    let moments = [TensorKind::FirstMoment, TensorKind::SecondMoment];
    let there = role.tensors.iter().filter(|t| t.space == Space::Host && moments.contains(&t.kind));
    let places: BTreeMap<u64, u64> = there.map(|t| (t.offset, t.place_bytes())).collect();
    places.values().sum()
}

/// Bytes that the system can still give to this process, where it says so: on Linux, the least of what the machine has, what its control groups are allowed
/// to have, and what limits (`ulimit`) leave of its address space.
pub fn available_memory() -> Option<u64> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let machine = kibibytes(&read("/proc/meminfo"), "MemAvailable:");
    let groups = of_groups(Path::new("/sys/fs/cgroup"), &read("/proc/self/cgroup"));
    let limits = of_limits(&read("/proc/self/limits"), &status);
    [machine, groups, limits].into_iter().flatten().min()
}

/// `VmSize:   1234 kB`, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let number = text.lines().find_map(|line| line.strip_prefix(name))?;
    number.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What limits on a process leave.
fn of_limits(limits: &str, status: &str) -> Option<u64> {
    let left = |limit: &str, used: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
        // The soft one comes first; it is a word where there is no limit.
        let soft = line.split_whitespace().next()?.parse::<u64>().ok()?;
        Some(soft.saturating_sub(kibibytes(status, used)?))
    };
    [left("Max address space", "VmSize:"), left("Max data size", "VmData:")].into_iter().flatten().min()
}

/// What the control groups of a process leave, each of which is limited by those above it. `memberships` is as in `/proc/self/cgroup`.
fn of_groups(root: &Path, memberships: &str) -> Option<u64> {
    memberships.lines().filter_map(|line| of_hierarchy(root, line)).min()
}

/// The same of one line: `0::/path` in version 2, `4:memory:/path` in version 1.
fn of_hierarchy(root: &Path, membership: &str) -> Option<u64> {
    let mut fields = membership.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let first = controllers.is_empty();
    if !first && !controllers.split(',').any(|c| c == "memory") {
        return None;
    }
    let (root, limit, usage, files): (PathBuf, _, _, [&str; 2]) = match first {
        true => (root.into(), "memory.max", "memory.current", ["active_file ", "inactive_file "]),
        false => (
            root.join("memory"),
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            ["total_active_file ", "total_inactive_file "],
        ),
    };
    let number = |group: &Path, file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    let left = |group: &Path| {
        // What is kept of files is given up before anybody is refused memory.
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let kept = files.iter().filter_map(|name| stat.lines().find_map(|l| l.strip_prefix(name)?.parse::<u64>().ok()));
        let used = number(group, usage).unwrap_or(0).saturating_sub(kept.sum());
        Some(number(group, limit)?.saturating_sub(used))
    };
    // In a container the path may be one that only its host sees; the root is there in any case.
    let group = root.join(path.trim_start_matches('/'));
    group.ancestors().take_while(|group| group.starts_with(&root)).filter_map(left).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_a_process() {
        let limits = |space: &str, data: &str| {
            format!(
                "Limit   Soft Limit  Hard Limit  Units\nMax data size  {data}  unlimited bytes\nMax address space  {space}  unlimited bytes\n"
            )
        };
        let status = "Name:\tforebay\nVmSize:\t    2048 kB\nVmData:\t    1024 kB\n";
        assert_eq!(of_limits(&limits("unlimited", "unlimited"), status), None);
        assert_eq!(of_limits(&limits("8388608", "unlimited"), status), Some(6 << 20));
        assert_eq!(of_limits(&limits("8388608", "2097152"), status), Some(1 << 20));
        assert_eq!(of_limits(&limits("1024", "unlimited"), status), Some(0));
        assert_eq!(of_limits("", ""), None);
    }

    #[test]
    fn limits_of_control_groups() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path();
        let write = |group: &str, files: &[(&str, &str)]| {
            fs::create_dir_all(root.join(group)).expect("a folder");
            files.iter().for_each(|(name, text)| fs::write(root.join(group).join(name), text).expect("a file"));
        };
        assert_eq!(of_groups(root, "0::/a/b\n"), None);
        // A group above the own one is tighter; part of what it uses is kept of files.
        let stat = "anon 100\ninactive_file 300\nactive_file 50\n";
        write("a", &[("memory.max", "1000\n"), ("memory.current", "500\n"), ("memory.stat", stat)]);
        write("a/b", &[("memory.max", "max\n"), ("memory.current", "200\n")]);
        assert_eq!(of_groups(root, "0::/a/b\n"), Some(850));
        write("a/b", &[("memory.max", "900\n")]);
        assert_eq!(of_groups(root, "0::/a/b\n"), Some(700));
        // A path that is not there: what is above it counts.
        assert_eq!(of_groups(root, "0::/a/elsewhere\n"), Some(850));
        // Version 1, beside controllers that do not matter.
        write("memory/c", &[("memory.limit_in_bytes", "600\n"), ("memory.usage_in_bytes", "100\n")]);
        assert_eq!(of_groups(root, "7:cpu,cpuacct:/c\n4:memory:/c\n0::/\n"), Some(500));
        assert_eq!(of_groups(root, "7:cpu,cpuacct:/c\n"), None);
    }

    #[test]
    fn this_machine() {
        if cfg!(target_os = "linux") {
            assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
        }
    }
}
