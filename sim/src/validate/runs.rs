//! Measured runs: a CSV file, one run a row, columns by name.

use super::lines::{Lines, closed, unreadable};
use forebay_dsl::diagnostics::closest;
use regex_lite::Regex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::LazyLock;

/// A measured run, as its row says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Its name.
    pub id: String,
    /// Its line in the table, from 1.
    pub line: u64,
    /// The system: the name up to the last dash, or the `system` column.
    pub system: String,
    /// Where it is from, the model's name, and remarks: what says which framework ran it.
    pub text: String,
    /// Of these where it is from.
    pub source: String,
    /// Of these the remarks on its configuration.
    pub notes: String,
    /// The model's name.
    pub model: String,
    /// The device.
    pub device: String,
    /// `A`, `B`, …
    pub grade: String,
    /// `BF16`, `FP8`, …
    pub precision: String,
    /// `none`, `full`, `selective: …`
    pub recompute: String,
    /// A number of a head's elements, or the sizes of latent attention.
    pub head: String,
    /// Parameters, in 10⁹.
    pub params_b: Option<f64>,
    /// Whole numbers by column.
    numbers: [Option<u64>; NUMBERS.len()],
    /// Seconds of a step.
    pub step_time: Option<f64>,
    /// TFLOP/s of a device, of FLOPs that the model needs: what is measured where there is no time.
    pub tflops: Option<f64>,
    /// Peak memory of a device, GB.
    pub memory_gb: Option<f64>,
    /// It did not fit: what was measured is `OOM`.
    pub out_of_memory: bool,
}

/// Columns of whole numbers.
const NUMBERS: [&str; 24] = [
    "layers",
    "dense_layers",
    "hidden",
    "ffn_hidden",
    "moe_ffn_hidden",
    "experts",
    "topk",
    "shared_experts",
    "heads",
    "kv_heads",
    "vocab",
    "seq_len",
    "devices_per_node",
    "n_devices",
    "tp",
    "pp",
    "vpp",
    "ep",
    "etp",
    "cp",
    "dp",
    "mbs",
    "gbs",
    "zero",
];

/// The first so many of them say what a model is.
const ARCHITECTURE: usize = 11;
/// Of these a model may have none.
const MAY_BE_NONE: [&str; 7] =
    ["dense_layers", "ffn_hidden", "moe_ffn_hidden", "experts", "topk", "shared_experts", "zero"];

/// The largest number that a column may hold: what is more is a mistake, and would take for ever to compile.
fn most(column: &str) -> f64 {
    match column {
        "zero" => 3.0,
        "layers" | "dense_layers" => 1e4,
        "experts" | "topk" | "shared_experts" | "heads" | "kv_heads" => 1e5,
        _ => 1e8,
    }
}

/// Columns of what was measured, and what they hold where a run did not fit into memory.
const MEASURED: [&str; 3] = ["step_time_s", "tokens_per_s_per_device", "peak_mem_gb"];
const OUT_OF_MEMORY: &str = "OOM";

/// The least and the largest decimal that a column may hold: what is beyond is no measurement, in whatever unit.
const DECIMALS: std::ops::RangeInclusive<f64> = 1e-9..=1e9;

/// Columns without which there is nothing to predict.
const NEEDED: [&str; 8] = ["layers", "hidden", "heads", "vocab", "seq_len", "device", "n_devices", "gbs"];

impl Run {
    /// A whole number of the row; `None` where it is blank or the column is missing.
    pub fn number(&self, column: &str) -> Option<u64> {
        NUMBERS.iter().position(|c| *c == column).and_then(|i| self.numbers[i])
    }

    /// The run with a whole number of its row replaced.
    pub fn with(&self, column: &str, value: u64) -> Run {
        let mut run = self.clone();
        if let Some(i) = NUMBERS.iter().position(|c| *c == column) {
            run.numbers[i] = Some(value);
        }
        run
    }

    /// The run as if nothing but this stood in its source and notes.
    pub fn saying(&self, words: &str) -> Run {
        Run { text: words.to_string(), notes: words.to_string(), ..self.silent() }
    }

    /// The run without some words of its notes.
    pub fn without(&self, words: &str) -> Run {
        let [text, notes] = [&self.text, &self.notes].map(|text| text.replacen(words, "", 1));
        Run { text, notes, ..self.clone() }
    }

    /// The run as if nothing stood in its source and notes.
    pub fn silent(&self) -> Run {
        Run { text: String::new(), source: String::new(), notes: String::new(), ..self.clone() }
    }

    /// The same, at least 1, for what is 1 when nothing is said.
    pub fn degree(&self, column: &str) -> u64 {
        self.number(column).unwrap_or(1).max(1)
    }

    /// The numbers that say what a model is, whatever it is called.
    pub fn architecture(&self) -> &[Option<u64>] {
        &self.numbers[..ARCHITECTURE]
    }

    /// Data-parallel ranks: what the row says, else what other degrees leave of its devices.
    pub fn data_parallel(&self) -> u64 {
        let others = ["tp", "pp", "cp"].map(|name| self.degree(name));
        let others = others.iter().fold(1, |all: u64, n| all.saturating_mul(*n));
        self.number("dp").unwrap_or(self.degree("n_devices") / others)
    }
}

/// Why a file of runs cannot be read: a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunsError(pub String);

impl fmt::Display for RunsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RunsError {}

/// A row that cannot be used: its name, and why.
pub type BadRow = (String, RunsError);

/// A table that was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Runs {
    /// The runs.
    pub runs: Vec<Run>,
    /// Rows that cannot be used.
    pub bad: Vec<BadRow>,
    /// Columns that nothing is known of, and that are left alone.
    pub unknown: Vec<String>,
}

/// Reads runs, and says which rows cannot be used because there is text where a number belongs. Columns may stand in any order, in upper or lower case; unknown ones are
/// left alone.
///
/// # Errors
/// An empty file, a quote that is not closed, fields that commas do not separate, columns that are missing or there twice, rows of another length.
pub fn read(text: &str) -> Result<Runs, RunsError> {
    closed(text)?;
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|e| RunsError(format!("the first line cannot be read: {e}")))?;
    let header: csv::StringRecord = header.iter().map(column).collect();
    if header.iter().all(str::is_empty) {
        return Err(RunsError(
            "the file is empty: the first line names columns such as layers, hidden, device, n_devices".into(),
        ));
    }
    if let (1, Some((separator, name))) = (header.len(), SEPARATORS.iter().find(|(s, _)| header[0].contains(*s))) {
        let columns = header[0].split(*separator).count();
        return Err(RunsError(format!(
            "its fields are separated by {name}: the first line is one column, or {columns} if commas stood there\n  = help: separate fields by commas, and put \
             fields with commas in them in double quotes"
        )));
    }
    let mut names = FxHashSet::default();
    if let Some(name) = header.iter().find(|name| !name.is_empty() && !names.insert(*name)) {
        return Err(RunsError(format!("the column `{name}` is there twice")));
    }
    let missing: Vec<&str> = NEEDED.into_iter().filter(|n| header.iter().all(|h| h != *n)).collect();
    // What is written otherwise is there as a column that is not known.
    let meant = |names: &[&'static str]| {
        let others: Vec<&str> = header.iter().filter(|name| !is_known(name)).collect();
        let written = |name: &&'static str| closest(name, others.iter().copied()).map(|other| (other, *name));
        let asked = |(other, name): (&str, &str)| format!("is `{other}` meant to be `{name}`{}? ", unit(name));
        names.iter().find_map(written).map_or(String::new(), asked)
    };
    if !missing.is_empty() {
        return Err(RunsError(format!(
            "columns are missing: {}\n  = help: {}the first line names the columns; those that are needed are {}",
            missing.join(", "),
            meant(&missing),
            NEEDED.join(", ")
        )));
    }
    if TIMES.iter().all(|n| header.iter().all(|h| h != *n)) {
        let help = match meant(&TIMES) {
            none if none.is_empty() => none,
            other => format!("\n  = help: {}", other.trim_end()),
        };
        return Err(RunsError(format!(
            "there is nothing measured: a column `step_time_s`, `tokens_per_s_per_device` or `tflops_per_device` is missing{help}"
        )));
    }
    let unknown = header.iter().filter(|h| !h.is_empty() && !is_known(h)).map(str::to_string).collect();
    let mut table = Runs { unknown, ..Runs::default() };
    let mut lines: FxHashMap<String, u64> = FxHashMap::default();
    let mut counted = Lines::new(text);
    for record in reader.records() {
        let record = record.map_err(|error| unreadable(text, &error))?;
        let line = counted.of(record.position());
        if record.iter().all(str::is_empty) {
            continue;
        }
        let fields = Fields { header: &header, record: &record };
        match run(&fields, line) {
            Ok(run) => match lines.entry(run.id.clone()) {
                Entry::Vacant(entry) => {
                    entry.insert(line);
                    table.runs.push(run);
                }
                Entry::Occupied(entry) => {
                    let why = format!("line {line}: a run of this id is in line {} too", entry.get());
                    table.bad.push((run.id, RunsError(why)));
                }
            },
            Err(why) => table.bad.push((fields.get("id").to_string(), why)),
        }
    }
    Ok(table)
}

/// Columns of what was measured of a step, of which one is needed.
const TIMES: [&str; 3] = ["step_time_s", "tokens_per_s_per_device", "tflops_per_device"];

/// What tables use instead of commas.
const SEPARATORS: [(char, &str); 3] = [(';', "semicolons"), ('\t', "tabs"), ('|', "bars")];

/// Columns of text and decimals, and those that people keep beside and that predictions do not need.
const OTHERS: [&str; 17] = [
    "id",
    "system",
    "source",
    "model",
    "params_b",
    "active_params_b",
    "head_dim",
    "device",
    "precision",
    "recompute",
    "notes_config",
    "extra",
    "grade",
    "step_time_s",
    "tokens_per_s_per_device",
    "tflops_per_device",
    "mfu",
];

/// A column as it is known, whatever its case; as it is written where it is not known.
fn column(written: &str) -> String {
    let plain = written.to_lowercase();
    if is_known(&plain) { plain } else { written.to_string() }
}

fn is_known(column: &str) -> bool {
    OTHERS.contains(&column) || NUMBERS.contains(&column) || column == "peak_mem_gb"
}

/// What programs that write tables put where there is no number.
const NO_NUMBERS: [&str; 4] = ["nan", "none", "null", "?"];

/// A row's fields by name; what is not there is blank.
struct Fields<'a> {
    header: &'a csv::StringRecord,
    record: &'a csv::StringRecord,
}

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> &'a str {
        let field = self.header.iter().position(|h| h == name).and_then(|i| self.record.get(i)).unwrap_or("");
        // What people write into fields that are blank.
        if ["-", "n/a", "N/A", "NA"].contains(&field) { "" } else { field }
    }

    /// A field of a number.
    fn number(&self, name: &str) -> &'a str {
        let field = self.get(name);
        // (No ZeRO is a stage of it.)
        if name == "zero" && field.eq_ignore_ascii_case("none") {
            return "0";
        }
        if NO_NUMBERS.iter().any(|blank| field.eq_ignore_ascii_case(blank)) { "" } else { field }
    }
}

/// What helps where a number has its thousands apart, or words behind it. (What a unit, a scale or a comma of decimals means is not guessed.)
fn alone(text: &str) -> String {
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^(\d{1,3}(?:[,_' ]\d{3})+|\d+)(?: (?:tokens|layers|heads|experts|gpus|devices|ranks|rows))?$")
            .expect("the pattern is right")
    });
    if !text.starts_with(|c: char| c.is_ascii_digit()) || text.parse::<f64>().is_ok() {
        return String::new();
    }
    let number =
        NUMBER.captures(&leading(text).to_lowercase()).map(|found| found[1].replace([',', '_', '\'', ' '], ""));
    let example = number.map_or(String::new(), |number| format!(": `{number}`"));
    format!("\n  = help: a field holds the number alone, in the unit of its column{example}")
}

/// A number may have a remark behind it: `8 (the config says 16)`.
fn leading(text: &str) -> &str {
    text.split_once(" (").map_or(text, |(number, _)| number)
}

/// What runs are told together with where nothing says so: those whose names differ in a number behind a hyphen, else those of one source.
fn system_of(id: &str, source: &str) -> String {
    match id.rsplit_once('-') {
        Some((system, number)) if !system.is_empty() && (source.is_empty() || number.parse::<u64>().is_ok()) => {
            system.to_string()
        }
        _ if source.is_empty() => id.to_string(),
        _ => source.chars().take(LONGEST_SYSTEM).collect::<String>().trim_end().to_string(),
    }
}

/// Of a source so many characters are a name.
const LONGEST_SYSTEM: usize = 60;

fn run(fields: &Fields, line: u64) -> Result<Run, RunsError> {
    let field = |name: &str| fields.get(name);
    let wrong = |name: &str, what: &str| {
        let shown: String = field(name).chars().take(60).collect();
        RunsError(format!("line {line}: `{name}` is {what}, not `{shown}`{}", alone(field(name))))
    };
    let decimal = |name: &str| match fields.number(name) {
        "" => Ok(None),
        text if text.eq_ignore_ascii_case(OUT_OF_MEMORY) && MEASURED.contains(&name) => Ok(None),
        text => match leading(text).parse::<f64>() {
            Ok(v) if DECIMALS.contains(&v) => Ok(Some(v)),
            Ok(v) if v > 0.0 => Err(wrong(name, &format!("from {:e} to {:e}", DECIMALS.start(), DECIMALS.end()))),
            _ => Err(wrong(name, &format!("a number above 0{}", unit(name)))),
        },
    };
    let mut numbers = [None; NUMBERS.len()];
    for (slot, name) in numbers.iter_mut().zip(NUMBERS) {
        *slot = match fields.number(name) {
            "" => None,
            // Tables are often written by programs that make every number a decimal.
            text => match leading(text).parse::<f64>() {
                Ok(v) if v >= 0.0 && v.fract() == 0.0 && v <= most(name) => Some(v as u64),
                Ok(v) if v > most(name) => return Err(wrong(name, &format!("at most {}", most(name)))),
                _ => return Err(wrong(name, "a whole number")),
            },
        };
        if *slot == Some(0) && !MAY_BE_NONE.contains(&name) {
            return Err(wrong(name, "at least 1, or blank"));
        }
    }
    let id = if field("id").is_empty() { format!("line {line}") } else { field("id").to_string() };
    let system = match field("system") {
        "" => system_of(&id, field("source")),
        system => system.to_string(),
    };
    let mut run = Run {
        id,
        line,
        system,
        text: ["source", "notes_config", "extra"].map(field).join("; "),
        source: field("source").to_string(),
        notes: field("notes_config").to_string(),
        model: field("model").to_string(),
        device: field("device").to_string(),
        grade: field("grade").to_string(),
        precision: field("precision").to_string(),
        recompute: field("recompute").to_string(),
        head: field("head_dim").to_string(),
        params_b: decimal("params_b")?,
        numbers,
        step_time: decimal("step_time_s")?,
        tflops: decimal("tflops_per_device")?,
        memory_gb: decimal("peak_mem_gb")?,
        out_of_memory: MEASURED.iter().any(|name| field(name).eq_ignore_ascii_case(OUT_OF_MEMORY)),
    };
    if let Some(rate) = decimal("tokens_per_s_per_device")? {
        let all = |name| run.number(name).map(|n| n as f64);
        let tokens = all("gbs").zip(all("seq_len")).map(|(g, s)| g * s);
        let by_rate = tokens.zip(all("n_devices")).map(|(t, n)| t / (rate * n.max(1.0)));
        if let Some(seconds) = by_rate.filter(|seconds| !DECIMALS.contains(seconds)) {
            return Err(wrong("tokens_per_s_per_device", &format!("a rate whose step of {seconds:.1e} s can be")));
        }
        if let (Some(stated), Some(seconds)) = (run.step_time, by_rate)
            && !ALIKE.contains(&(stated / seconds))
        {
            return Err(RunsError(format!(
                "line {line}: `step_time_s` says {stated:.4} s, and `tokens_per_s_per_device` {seconds:.4} s (gbs × seq_len / n_devices tokens of a device): one of them is in another unit"
            )));
        }
        run.step_time = run.step_time.or(by_rate);
    }
    Ok(run)
}

/// What a step's time may be of what its tokens say, for roundings and warm-up.
const ALIKE: std::ops::RangeInclusive<f64> = 0.67..=1.5;

/// The unit of a column.
fn unit(column: &str) -> &'static str {
    match column {
        "step_time_s" => " (seconds)",
        "tokens_per_s_per_device" => " (tokens a second and device)",
        "tflops_per_device" => " (TFLOP/s of a device)",
        "peak_mem_gb" => " (GB of a device)",
        "params_b" => " (billions)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "id,layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,tokens_per_s_per_device\n";

    /// Names that do not end in a number are of single runs: these are told together by their source.
    #[test]
    fn systems_are_numbered_runs_or_sources() {
        let of = |id: &str, source: &str| system_of(id, source);
        assert_eq!([of("vtrain-012", "a paper"), of("a-b-7", ""), of("ours-tp8", "")], ["vtrain", "a-b", "ours"]);
        assert_eq!([of("ours-tp8", "our logs"), of("x-", "our logs"), of("x", "our logs")], ["our logs"; 3]);
        assert_eq!([of("x", ""), of("-5", "")], ["x", "-5"]);
    }

    #[test]
    fn rows_are_read_by_name() {
        let text = format!("{HEAD}a-1,2,64,4 (says the config),256,128,H100,8.0,16,32\n,,,,,,,,,\n");
        let runs = read(&text).expect("a file").runs;
        assert_eq!(runs.len(), 1);
        assert_eq!((runs[0].system.as_str(), runs[0].number("n_devices"), runs[0].degree("tp")), ("a", Some(8), 1));
        assert_eq!(runs[0].step_time, Some(16.0 * 128.0 / (32.0 * 8.0)));
    }

    /// Spreadsheets write `Layers`, and blanks beside it.
    #[test]
    fn names_of_columns_have_any_case() {
        let row = "a,2,64,4,256,128,H100,8,16,1";
        let named = HEAD.replace("layers", " Layers ").replace("gbs", "GBS");
        let table = read(&format!("{}Colour\n{row},red\n", named.replace('\n', ","))).expect("a table");
        assert_eq!((table.runs[0].number("layers"), table.runs[0].number("gbs")), (Some(2), Some(16)));
        assert_eq!(table.unknown, ["Colour"]);
        let twice = read(&HEAD.replace("id,", "Layers,")).expect_err("it is there twice").0;
        assert_eq!(twice, "the column `layers` is there twice");
    }

    #[test]
    fn what_is_not_used_and_what_is_there_twice_is_known() {
        let row = "a,2,64,4,256,128,H100,8,16,1";
        let table = read(&format!("{}colour\n{row},red\n{row},blue\n", HEAD.replace('\n', ","))).expect("a table");
        assert_eq!(table.unknown, ["colour"]);
        assert_eq!(table.runs.len(), 1);
        assert_eq!(table.bad[0].1.0, "line 3: a run of this id is in line 2 too");
    }

    /// However lines end, with a mark at the beginning, blank lines, and line ends within quotes.
    #[test]
    fn lines_are_counted_as_editors_do() {
        let row = |name: &str, hidden: &str| format!("{name},2,{hidden},4,256,128,H100,8,16,1\n");
        let unix = [HEAD, &row("a", "two"), "\n", &row("\"b\nc\"", "64"), &row("d", "four")].concat();
        for text in [unix.clone(), unix.replace('\n', "\r\n"), unix.replace('\n', "\r")] {
            for text in [text.clone(), format!("\u{feff}{text}"), text.trim_end().to_string()] {
                let bad: Vec<String> = read(&text).expect("a table").bad.into_iter().map(|b| b.1.0).collect();
                assert!(bad[0].starts_with("line 2: `hidden`") && bad[1].starts_with("line 6: `hidden`"), "{bad:?}");
                let short = read(&text.replace(",four", "")).expect_err("a field is missing").0;
                assert!(short.starts_with("line 6 has 9 fields"), "{short}");
            }
        }
    }

    #[test]
    fn mistakes_are_said() {
        let of = |text: &str| read(text).expect_err("it is wrong").0;
        assert!(of("").contains("empty"));
        assert!(of("id,layers\n").contains("hidden, heads, vocab"));
        assert!(of(&HEAD.replace(",tokens_per_s_per_device", "")).contains("nothing measured"));
        assert!(of(&HEAD.replace("id,", "layers,")).contains("twice"));
        let bad = |row: &str| read(&format!("{HEAD}{row}\n")).expect("a file").bad[0].1.0.clone();
        assert!(bad("a,two,64,4,256,128,H100,8,16,1").contains("line 2: `layers` is a whole number, not `two`"));
        for (cell, help) in [
            ("32,000", "its column: `32000`"),
            ("32,000 tokens", "its column: `32000`"),
            ("128 Tokens", "its column: `128`"),
            ("32K", "its column"),
            ("1,5", "its column"),
            ("12.5.3", "its column"),
            ("120 ms", "its column"),
        ] {
            let why = bad(&format!("a,2,64,4,256,\"{cell}\",H100,8,16,1"));
            assert!(why.contains(&format!("not `{cell}`\n  = help: ")) && why.ends_with(help), "{why}");
        }
        assert!(!bad("a,two,64,4,256,128,H100,8,16,1").contains("help"));
        let misspelt = of(&HEAD.replace("tokens_per_s_per_device", "tokens_per_s_per_devise"));
        let asked =
            "= help: is `tokens_per_s_per_devise` meant to be `tokens_per_s_per_device` (tokens a second and device)?";
        assert!(misspelt.ends_with(asked), "{misspelt}");
        let misspelt = of(&HEAD.replace("vocab", "vocabs"));
        assert!(
            misspelt.contains("missing: vocab\n  = help: is `vocabs` meant to be `vocab`? the first line"),
            "{misspelt}"
        );
        let stage = |zero: &str| {
            let table =
                read(&format!("{},zero\na,2,64,4,256,128,H100,8,16,1,{zero}\n", HEAD.trim_end())).expect("a table");
            table.runs[0].number("zero")
        };
        assert_eq!(["None", "NaN", "3"].map(stage), [Some(0), None, Some(3)], "no ZeRO is none");
        for blank in ["NaN", "None", "null", "?", "n/a", "-"] {
            assert_eq!(
                read(&format!("{HEAD}a,2,64,4,256,128,H100,8,16,{blank}\n")).expect("a table").bad,
                [],
                "{blank}"
            );
        }
        assert!(bad("a,2,64,4,256,128,H100,8,16,-1").contains("above 0"));
        assert!(bad("a,2,64,4,256,128,H100,8,16,120 ms").contains("`120 ms`"));
        assert!(bad("a,2,64,4,256,128,H100,0,16,1").contains("`n_devices` is at least 1, or blank, not `0`"));
        assert!(bad("a,20000,64,4,256,128,H100,8,16,1").contains("`layers` is at most 10000"));
        assert!(of(&format!("{HEAD}a,2,64\n")).contains("line 2 has 3 fields, but the first line names 10 columns"));
        for number in ["1e-300", "1e300", "inf"] {
            let why = bad(&format!("a,2,64,4,256,128,H100,8,16,{number}"));
            assert!(why.contains(&format!("`tokens_per_s_per_device` is from 1e-9 to 1e9, not `{number}`")), "{why}");
        }
        assert!(bad("a,2,64,4,256,100000000,H100,8,1000,1e-9").contains("whose step of"));
        assert!(
            of(&format!("{HEAD}a,2,64,4,256,128,\"H100,8,16,1\nb,2,64,4,256,128,H100,8,16,1\n"))
                .starts_with("a quote of line 2 ")
        );
        assert!(of(&format!("{HEAD}a,2,64,4,256,128,H100,8,16,\"1")).starts_with("a quote of line 2 "));
        assert!(of(&HEAD.replace("id,", "\"id,")).starts_with("a quote of line 1 "));
        let (id, quoted) = ("\"a, \"\"b\"\"\"", "5\" of it");
        assert_eq!(
            read(&format!("{HEAD}{id},2,64,4,256,128,{quoted},8,16,1\n")).expect("a table").runs[0].device,
            quoted
        );
        assert!(of(&HEAD.replace(',', ";")).contains("separated by semicolons"));
        assert!(of(&HEAD.replace(',', "\t")).contains("separated by tabs"));
    }
}
