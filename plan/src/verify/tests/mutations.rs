//! Single small changes of a valid plan: which are found, and which are not.
//!
//! What survives must be harmless for memory and order, though it may be another computation (another constant, another input that has the same
//! shape): against accidents of that kind there is the checksum.

use super::*;
use serde_json::Value;

/// Where in a JSON value: keys and indices.
pub(super) type Path = Vec<Step>;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

/// All numbers of a value.
pub(super) fn numbers(value: &Value, here: &mut Path, found: &mut Vec<Path>) {
    walk(value, here, &mut |path, value| {
        if value.is_u64() || value.is_i64() {
            found.push(path.clone());
        }
    });
}

/// All arrays of a value.
fn arrays(value: &Value, found: &mut Vec<(Path, usize)>) {
    walk(value, &mut vec![], &mut |path, value| {
        if let Value::Array(items) = value {
            found.push((path.clone(), items.len()));
        }
    });
}

fn walk(value: &Value, here: &mut Path, visit: &mut impl FnMut(&Path, &Value)) {
    visit(here, value);
    let mut child = |step, value: &Value| {
        here.push(step);
        walk(value, here, visit);
        here.pop();
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| child(Step::Key(key.clone()), value)),
        Value::Array(items) => items.iter().enumerate().for_each(|(i, value)| child(Step::Index(i), value)),
        _ => {}
    }
}

pub(super) fn at<'v>(value: &'v mut Value, path: &Path) -> &'v mut Value {
    path.iter().fold(value, |value, step| match step {
        Step::Key(key) => &mut value[key],
        Step::Index(i) => &mut value[i],
    })
}

/// A plan from JSON, whatever its checksum.
pub(super) fn parse(value: &Value) -> Result<Plan, serde_json::Error> {
    let mut value = value.clone();
    value.as_object_mut().expect("a plan is an object").remove("checksum");
    serde_json::from_value(value)
}

/// The kind of thing at a path: its keys, without indices.
fn kind(path: &Path) -> String {
    let keys = path.iter().filter_map(|step| match step {
        Step::Key(key) => Some(key.as_str()),
        Step::Index(_) => None,
    });
    keys.collect::<Vec<_>>().join(".")
}

/// Mutations by kind: how many were made, how many found.
#[derive(Default)]
struct Tally(std::collections::BTreeMap<String, (u32, u32)>);

impl Tally {
    fn count(&mut self, kind: String, value: &Value) {
        let entry = self.0.entry(kind).or_default();
        entry.0 += 1;
        let found = parse(value).map_or(true, |plan| verify(&plan).is_err());
        entry.1 += u32::from(found);
    }

    fn rate(&self) -> f64 {
        let (made, found) = self.0.values().fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1));
        f64::from(found) / f64::from(made)
    }

    fn report(&self, what: &str) -> String {
        let (made, found) = self.0.values().fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1));
        let mut text = format!("{what}: {found} of {made} found\n");
        for (kind, (made, found)) in self.0.iter().filter(|(_, (made, found))| found < made) {
            text += &format!("  {kind}: {found} of {made}\n");
        }
        text
    }
}

/// A plan small enough to change everywhere.
fn subject() -> Value {
    let plan = testing::plan(&testing::Shape { layers: 2, ops: testing::Op::ALL.to_vec(), ..Default::default() });
    serde_json::from_slice(&plan.to_bytes()).expect("plans are JSON")
}

/// Few enough that the tests are quick; `--nocapture` shows what was found. Raise it to look closer.
const SAMPLES: usize = 300;

/// Every n-th.
fn some<T>(all: Vec<T>, most: usize) -> impl Iterator<Item = T> {
    let step = all.len().div_ceil(most).max(1);
    all.into_iter().step_by(step)
}

/// Two stages of two ranks.
fn pipeline() -> Value {
    serde_json::from_slice(&testing::pipeline().to_bytes()).expect("plans are JSON")
}

/// Which of the instructions that concern other ranks, and what of them.
#[test]
fn peers_groups_and_channels() {
    let value = pipeline();
    let mut paths = vec![];
    numbers(&value, &mut vec![], &mut paths);
    let own = ["kernel.exchange", "kernel.all_to_all_v", "kernel.send", "kernel.recv"];
    paths.retain(|path| own.iter().any(|name| kind(path).contains(name)));
    let mut tally = Tally::default();
    for path in paths {
        for change in [1, -1] {
            let mut value = value.clone();
            let number = at(&mut value, &path);
            *number = (number.as_i64().expect("plans have no huge numbers") + change).into();
            tally.count(kind(&path), &value);
        }
    }
    println!("{}", tally.report("numbers of other ranks off by one"));
    // What survives reads another array of the same shape, or makes room smaller that may be enough.
    assert!(tally.rate() > 0.75, "{}", tally.report("numbers of other ranks off by one"));
}

#[test]
fn collectives_and_messages_left_out_or_swapped() {
    let value = pipeline();
    let (mut dropped, mut swapped) = (Tally::default(), Tally::default());
    for program in 0..2 {
        let path = vec![Step::Key("programs".into()), Step::Index(program), Step::Key("instructions".into())];
        let count = at(&mut value.clone(), &path).as_array().expect("it is an array").len();
        let name = |value: &Value, i: usize| {
            let kernel = value["programs"][program]["instructions"][i]["kernel"].as_object().expect("a kernel");
            kernel.keys().next().expect("its name").clone()
        };
        for i in 0..count {
            let what = name(&value, i);
            // Nothing waits for what it leaves behind but other ranks.
            let comm = ["exchange", "send", "recv", "all_to_all_v"].contains(&what.as_str());
            let mut without = value.clone();
            at(&mut without, &path).as_array_mut().expect("it is an array").remove(i);
            if comm && without["programs"][program]["instructions"].as_array().is_some_and(|l| l.len() + 1 == count) {
                dropped.count(what.clone(), &without);
            }
            for j in (i + 1..count).filter(|_| comm) {
                let mut other = value.clone();
                let list = at(&mut other, &path).as_array_mut().expect("it is an array");
                // Names and events stay where they are.
                let (a, b) = (list[i]["kernel"].clone(), list[j]["kernel"].clone());
                (list[i]["kernel"], list[j]["kernel"]) = (b, a);
                swapped.count(format!("{what} and {}", name(&value, j)), &other);
            }
        }
    }
    println!("{}{}", dropped.report("left out"), swapped.report("swapped"));
    assert!(dropped.rate() > 0.7, "{}", dropped.report("left out"));
    // What survives keeps the order between slabs: within one, all ranks still do the same.
    assert!(swapped.rate() > 0.5, "{}", swapped.report("swapped"));
}

#[test]
fn numbers_off_by_one() {
    let value = subject();
    let mut paths = vec![];
    numbers(&value, &mut vec![], &mut paths);
    let mut tally = Tally::default();
    for path in some(paths, SAMPLES) {
        for change in [1, -1] {
            let mut value = value.clone();
            let number = at(&mut value, &path);
            *number = (number.as_i64().expect("plans have no huge numbers") + change).into();
            tally.count(kind(&path), &value);
        }
    }
    println!("{}", tally.report("numbers off by one"));
    assert!(tally.rate() > 0.5, "{}", tally.report("numbers off by one"));
}

#[test]
fn offsets_off_by_a_line() {
    let value = subject();
    let mut paths = vec![];
    numbers(&value, &mut vec![], &mut paths);
    let place = |path: &Path| matches!(kind(path).rsplit('.').next(), Some("offset" | "s" | "bytes"));
    paths.retain(place);
    let mut tally = Tally::default();
    for path in some(paths, SAMPLES) {
        for change in [64, -64] {
            let mut value = value.clone();
            let number = at(&mut value, &path);
            *number = (number.as_i64().expect("plans have no huge numbers") + change).into();
            tally.count(kind(&path), &value);
        }
    }
    println!("{}", tally.report("places off by a line"));
    assert!(tally.rate() > 0.5, "{}", tally.report("places off by a line"));
}

#[test]
fn items_left_out_or_swapped() {
    let value = subject();
    let mut lists = vec![];
    arrays(&value, &mut lists);
    let items: Vec<(Path, usize, usize)> =
        lists.into_iter().flat_map(|(path, n)| (0..n).map(move |i| (path.clone(), i, n))).collect();
    let (mut dropped, mut swapped) = (Tally::default(), Tally::default());
    for (path, i, n) in some(items, SAMPLES) {
        let mut without = value.clone();
        let list = at(&mut without, &path).as_array_mut().expect("it is an array");
        list.remove(i);
        dropped.count(kind(&path), &without);
        if i + 1 < n {
            let mut other = value.clone();
            let list = at(&mut other, &path).as_array_mut().expect("it is an array");
            if list[i] != list[i + 1] {
                list.swap(i, i + 1);
                swapped.count(kind(&path), &other);
            }
        }
    }
    println!("{}{}", dropped.report("items left out"), swapped.report("neighbours swapped"));
    assert!(dropped.rate() > 0.5, "{}", dropped.report("items left out"));
    assert!(swapped.rate() > 0.3, "{}", swapped.report("neighbours swapped"));
}
