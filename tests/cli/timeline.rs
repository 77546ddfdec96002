//! `forebay simulate --trace` and `--html`.

use super::Bench;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::process::Command;

const STRATEGY: &str = "pp=2,vpp=2,dp=2,tp=2,ep=4,zero=1,mbs=1,micro=4,schedule=zb-vpp,max_tokens_per_rank=2048";

/// What `--json` says, and the file that the option wrote.
fn simulated(bench: &Bench, option: &str, name: &str) -> (Value, String) {
    let args = ["simulate", "model.moe", "--cluster", "h100", "--strategy", STRATEGY, "--json", option, name];
    let run = bench.run(&args).ok();
    assert!(run.stderr.contains(name), "{}", run.stderr);
    (serde_json::from_str(&run.stdout).expect("an object"), bench.read(name))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

#[test]
fn a_trace_has_what_the_report_sums_up() {
    let bench = Bench::new();
    let (report, text) = simulated(&bench, "--trace", "trace.json");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let of = |ph: &'static str| events.iter().filter(move |e| e["ph"] == ph);
    let names: Vec<&str> = of("M").filter_map(|e| e["args"]["name"].as_str()).collect();
    for name in ["stage0, one of 4 ranks alike", "stage1, one of 4 ranks alike", "passes", "calls", "Cube stream"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    // On a thread one after the other: what a stream runs, what a stage passes through.
    let mut threads: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    for e in of("X") {
        let at = (e["pid"].as_u64().expect("a process"), e["tid"].as_u64().expect("a thread"));
        threads.entry(at).or_default().push((number(&e["ts"]), number(&e["ts"]) + number(&e["dur"])));
    }
    let step = 1e6 * number(&report["step_time_s"]);
    for (at, slices) in &mut threads {
        slices.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
        assert!(slices.windows(2).all(|w| w[0].1 <= w[1].0 + 1e-3), "{at:?}");
        assert!(slices.iter().all(|s| s.0 >= 0.0 && s.1 <= step + 1e-3), "{at:?}");
    }
    let last = threads.values().flatten().map(|s| s.1).fold(0.0, f64::max);
    assert!((last - step).abs() < 1.0, "{last} {step}");
    // Waiting for other stages is the report's bubble, what a stage waits at its end included.
    let bubbles: f64 = of("X").filter(|e| e["name"] == "bubble").map(|e| number(&e["dur"])).sum();
    let ends = [1, 2]
        .map(|pid| threads.iter().filter(|(at, _)| at.0 == pid).flat_map(|(_, s)| s).map(|s| s.1).fold(0.0, f64::max));
    let bubble = (bubbles + ends.iter().map(|end| step - end).sum::<f64>()) / 2.0 / step;
    assert!((bubble - number(&report["bubble_fraction"])).abs() < 1e-4, "{bubble}");
    // Every pass of every micro-batch and chunk, once.
    let mut passes: HashMap<(u64, &str, u64, u64), u32> = HashMap::new();
    for e in of("X").filter(|e| e["tid"] == 0 && e["args"]["kind"] != "sums and update") {
        let of = |key: &str| e["args"][key].as_u64().expect("a number");
        let pass = (
            e["pid"].as_u64().expect("one"),
            e["args"]["kind"].as_str().expect("a kind"),
            of("micro_batch"),
            of("chunk"),
        );
        *passes.entry(pass).or_default() += 1;
    }
    assert_eq!(passes.len(), 2 * 3 * 4 * 2, "{passes:?}");
    assert!(passes.values().all(|n| *n == 1), "{passes:?}");
    // Arrows go forward in time, from one stage to the other.
    let ends =
        |ph: &'static str| -> HashMap<u64, &Value> { of(ph).map(|e| (e["id"].as_u64().expect("an id"), e)).collect() };
    let (from, to) = (ends("s"), ends("f"));
    assert!(!from.is_empty() && from.len() == to.len());
    for (id, start) in &from {
        assert!(start["pid"] != to[id]["pid"], "{start}");
        assert!(start["name"] != "message" || number(&start["ts"]) <= number(&to[id]["ts"]), "{start}");
    }
    // The counter's maximum is the memory in use at the peak.
    for (stage, pid) in report["memory_bytes"].as_array().expect("stages").iter().zip(1..) {
        let counts = of("C").filter(|e| e["pid"] == pid);
        let most = counts.map(|e| number(&e["args"]["held"]) + number(&e["args"]["scratch"])).fold(0.0, f64::max);
        let used = number(&stage["peak"]) - number(&stage["fragmentation"]);
        assert!((most / used - 1.0).abs() < 0.01, "{most} {used}");
        assert!(number(&stage["peak_time_s"]) <= step / 1e6 && stage["peak_call"].is_string());
    }
}

#[test]
fn files_that_cannot_be_written_are_named() {
    let bench = Bench::new();
    let run = |option: &str| {
        bench.run(&["simulate", "model.moe", "--cluster", "h100", "--strategy", "mbs=8", option, "missing/file"])
    };
    run("--trace").fails(&["cannot write `missing/file`"]);
    run("--html").fails(&["cannot write `missing/file`"]);
}

/// The text between two others.
fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let rest = text.split_once(before).unwrap_or_else(|| panic!("`{before}` is there")).1;
    rest.split_once(after).unwrap_or_else(|| panic!("`{after}` is there")).0
}

/// Every tag is closed by its own, in turn; text of scripts and styles is not looked at.
fn tags_match(html: &str) {
    const VOID: [&str; 2] = ["meta", "!DOCTYPE"];
    let (mut open, mut rest) = (vec![], html);
    while let Some((_, after)) = rest.split_once('<') {
        let (tag, after) = after.split_once('>').expect("a tag ends");
        rest = after;
        let name = tag.trim_end_matches('/').split_whitespace().next().expect("a name");
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "…{}", &rest[..rest.len().min(80)]);
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
            if name == "script" || name == "style" {
                rest = &rest[rest.find("</").expect("it ends")..];
            }
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

const CHARTS: [&str; 5] = ["pipeline", "streams", "memory", "breakdown", "gains"];

#[test]
fn a_page_stands_alone_and_says_what_the_report_says() {
    let bench = Bench::new();
    let (report, html) = simulated(&bench, "--html", "step.html");
    tags_match(&html);
    for outside in ["src=", "href=", "@import", "url(", "<link", "<iframe", "fetch(", "XMLHttpRequest", "import("] {
        assert!(!html.contains(outside), "{outside}");
    }
    // The one address is the name of a namespace.
    assert!(html.matches("http").count() == html.matches("\"http://www.w3.org/2000/svg\"").count());
    let inside: Value = serde_json::from_str(between(&html, "id=\"report\">", "</script>")).expect("JSON");
    assert_eq!(inside, report);
    for key in ["step_time_s", "tokens_per_s_per_device", "mfu", "hfu", "bubble_fraction", "host_bound_fraction"] {
        let shown = between(&html, &format!("data-key=\"{key}\" data-value=\""), "\"");
        assert_eq!(shown.parse::<f64>().expect("a number"), number(&report[key]), "{key}");
    }
    let peak: f64 = between(&html, "data-key=\"peak\" data-value=\"", "\"").parse().expect("a number");
    let stages = report["memory_bytes"].as_array().expect("stages");
    assert_eq!(peak, stages.iter().map(|m| number(&m["peak"])).fold(0.0, f64::max));
    for chart in CHARTS {
        for part in ["id=\"CHART\" role=\"img\"", "<title id=\"CHART-title\">", "<desc id=\"CHART-desc\">"] {
            assert!(html.contains(&part.replace("CHART", chart)), "{chart}");
        }
    }
    // The parts of a step's time are all of it.
    let parts = report["time_s"].as_array().expect("parts");
    let sum: f64 = parts.iter().map(|p| number(&p["seconds"])).sum();
    assert!((sum / number(&report["step_time_s"]) - 1.0).abs() < 1e-9, "{sum}");
    // So are the tiers of the network of all communication (messages under way are no work).
    let of = |key: &str| report["comm_by_link"].as_array().expect("links").iter().map(|l| number(&l[key])).sum::<f64>();
    let all = |key: &str| report[key].as_object().expect("kinds").values().map(number).sum::<f64>();
    assert!((of("total_s") / all("total_comm_s") - 1.0).abs() < 1e-9);
    assert!((of("exposed_s") / all("exposed_comm_s") - 1.0).abs() < 1e-9);
    // So are the phases of the pipeline of the step, its bubbles, and what experts send.
    let phases = report["phases"].as_array().expect("phases");
    let names: Vec<&str> = phases.iter().filter_map(|p| p["phase"].as_str()).collect();
    assert_eq!(names, ["fill", "steady", "drain", "update"]);
    let of = |key: &str| phases.iter().map(|p| number(&p[key])).sum::<f64>();
    let step = number(&report["step_time_s"]);
    for (have, want) in [
        (of("seconds"), step),
        (of("bubble_s"), step * number(&report["bubble_fraction"])),
        (of("exposed_ep_s"), number(&report["exposed_comm_s"]["ep"])),
        (of("total_ep_s"), number(&report["total_comm_s"]["ep"])),
    ] {
        assert!(want > 0.0 && (have / want - 1.0).abs() < 1e-9, "{have}, not {want}");
    }
    assert!(phases.iter().all(|p| number(&p["seconds"]) > 0.0), "{phases:?}");
    // Two stages wait for each other while the pipeline fills and while it drains.
    let bubbles: Vec<f64> = phases.iter().map(|p| number(&p["bubble_s"])).collect();
    assert!(bubbles[0] > 0.0 && bubbles[2] > 0.0, "{bubbles:?}");
}

/// A browser without a window, if this machine has one: `FOREBAY_CHROMIUM`, or what is in the search path.
fn browser() -> Option<String> {
    let names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"].map(String::from);
    let runs = |name: &String| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    std::env::var("FOREBAY_CHROMIUM").into_iter().chain(names).find(runs)
}

#[test]
fn a_browser_shows_its_charts() {
    let Some(browser) = browser() else {
        eprintln!("skipped: there is no Chromium here (FOREBAY_CHROMIUM names one)");
        return;
    };
    let bench = Bench::new();
    simulated(&bench, "--html", "step.html");
    let address = format!("file://{}", bench.path("step.html").display());
    let args = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom", &address];
    let output = Command::new(browser).args(args).output().expect("the browser starts");
    let page = String::from_utf8_lossy(&output.stdout);
    // The script sets this once all charts are drawn, and adds buttons to those that zoom.
    assert!(page.contains("data-ready=\"yes\""), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(page.matches("aria-label=\"zoom in\"").count(), 3);
    for chart in CHARTS {
        let drawn = between(&page, &format!("id=\"{chart}\" role=\"img\""), "</div>");
        assert!(drawn.contains("<rect") || drawn.contains("<path"), "{chart}");
    }
    let labels = between(&page, "id=\"pipeline\"", "</div>");
    assert!(labels.contains(">F0</text>"), "the script draws labels: {labels}");
}
