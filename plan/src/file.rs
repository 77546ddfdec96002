//! Plans as files: JSON with one instruction or call on a line, so that two plans can be compared with `diff`.
//!
//! The bytes are a function of the plan alone. The last field is a checksum of all that stands before it as [`Plan::to_bytes`] writes it, so that a
//! changed digit is noticed even where the result would be a legal plan; white space and the order of fields do not matter.
//!
//! Reading takes memory in proportion to the file (a limit applies to streams) and refuses: what is no plan, other versions (before
//! anything else is understood), truncated files, trailing data, unknown or repeated fields, deep nesting, a wrong checksum, and whatever
//! [`verify`](crate::verify()) finds.

use crate::schema::*;
use crate::verify::Violation;
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess};
use serde_json::value::RawValue;
use std::fmt;
use std::io::{self, Read, Write};

/// What [`Plan::format`] is.
pub const FORMAT: &str = "forebay-plan";

/// A sensible limit for [`Plan::read_from`]: 1 GiB.
pub const MAX_FILE_BYTES: u64 = 1 << 30;

/// Why a file is not a plan that can be run.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The stream failed.
    #[error("reading failed: {0}")]
    Io(#[from] io::Error),
    /// The stream is longer than the caller allows.
    #[error("the file is larger than {limit} bytes, the most that is read")]
    TooLarge {
        /// The caller's limit.
        limit: u64,
    },
    /// Something else altogether.
    #[error("this is not a Forebay plan: {0}")]
    NotAPlan(String),
    /// Another version.
    #[error("this plan has version {found}; this program reads version {VERSION} only: compile the model again")]
    Version {
        /// The file's version, as it stands there.
        found: String,
    },
    /// It stops in the middle.
    #[error("the plan is cut off: it ends at line {line}, column {column}, in the middle of something")]
    Truncated {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// It cannot be understood.
    #[error("the plan is damaged at line {line}, column {column}: {message}")]
    Malformed {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// A value was changed after the plan was written.
    #[error("the plan is damaged: its checksum is {stored}, its contents give {computed}")]
    Checksum {
        /// What the file says.
        stored: String,
        /// What belongs there.
        computed: String,
    },
    /// It can be understood but must not be run.
    #[error("the plan is invalid:\n{}", crate::verify::list(.0))]
    Invalid(Vec<Violation>),
}

impl Plan {
    /// The plan as a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![];
        self.write_to(&mut bytes).expect("writing to memory does not fail, and all map keys are strings");
        bytes
    }

    /// Writes the plan as a file, in many small pieces: wrap files and sockets in a [`BufWriter`](io::BufWriter).
    ///
    /// # Errors
    /// When the stream fails.
    pub fn write_to(&self, out: impl Write) -> io::Result<()> {
        let mut out = Hashed::new(out);
        write_contents(&mut out, self)?;
        let checksum = out.checksum();
        writeln!(out, "\"checksum\":\"{checksum}\"}}")
    }

    /// Reads a plan from at most `limit` bytes, and verifies it.
    ///
    /// # Errors
    /// When the stream fails or is longer, or its contents are no valid plan.
    pub fn read_from(input: impl Read, limit: u64) -> Result<Plan, ReadError> {
        Plan::from_bytes(&bytes_of(input, limit)?)
    }

    /// Reads a plan from at most `limit` bytes without verifying it; see [`Plan::parse`].
    ///
    /// # Errors
    /// When the stream fails or is longer, or its contents are no plan of this version.
    pub fn parse_from(input: impl Read, limit: u64) -> Result<Plan, ReadError> {
        Plan::parse(&bytes_of(input, limit)?)
    }

    /// Reads a plan and verifies it.
    ///
    /// # Errors
    /// When the bytes are no valid plan.
    pub fn from_bytes(bytes: &[u8]) -> Result<Plan, ReadError> {
        let plan = Plan::parse(bytes)?;
        crate::verify(&plan).map_err(ReadError::Invalid)?;
        Ok(plan)
    }

    /// Reads a plan without [verifying](crate::verify()) it: to look at, never to run.
    ///
    /// # Errors
    /// When the bytes are no plan of this version.
    pub fn parse(bytes: &[u8]) -> Result<Plan, ReadError> {
        check_header(bytes)?;
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        let stored = Stored::deserialize(&mut deserializer).map_err(malformed)?;
        deserializer.end().map_err(malformed)?;
        let Stored { format, version, model, settings, mesh, programs, roles, checksum: stored } = stored;
        let plan = Plan { format, version, model, settings, mesh, programs, roles };
        let computed = plan.checksum();
        if stored != computed {
            return Err(ReadError::Checksum { stored: excerpt(&stored), computed });
        }
        Ok(plan)
    }

    /// The checksum of the plan's contents: 64-bit FNV-1a of all that its file has before the checksum, as 16 hexadecimal digits.
    pub fn checksum(&self) -> String {
        let mut out = Hashed::new(io::sink());
        write_contents(&mut out, self).expect("a sink does not fail, and all map keys are strings");
        out.checksum()
    }
}

fn bytes_of(input: impl Read, limit: u64) -> Result<Vec<u8>, ReadError> {
    let mut bytes = vec![];
    input.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(ReadError::TooLarge { limit }) } else { Ok(bytes) }
}

/// The file: the plan's fields and the checksum.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: String,
    version: u32,
    model: String,
    settings: Settings,
    mesh: Vec<MeshDim>,
    programs: Vec<Program>,
    roles: Vec<Role>,
    checksum: String,
}

fn malformed(error: serde_json::Error) -> ReadError {
    let (line, column) = (error.line(), error.column());
    if error.is_eof() {
        return ReadError::Truncated { line, column };
    }
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(m, _)| m).to_string();
    ReadError::Malformed { line, column, message }
}

/// The two fields that every version has.
#[derive(Default)]
struct Header<'a> {
    format: Option<&'a RawValue>,
    version: Option<&'a RawValue>,
}

/// Is it a plan, and of a version that is known? Looks no further than it must, so that a later version's file may be anything else.
fn check_header(bytes: &[u8]) -> Result<(), ReadError> {
    let start = bytes.iter().position(|b| !b.is_ascii_whitespace());
    match start.map(|i| &bytes[i..]) {
        None => return Err(ReadError::NotAPlan("it is empty".into())),
        Some(rest) if rest[0] != b'{' => {
            let text = excerpt(&String::from_utf8_lossy(&rest[..rest.len().min(24)]));
            return Err(ReadError::NotAPlan(format!("it begins with `{text}`, not with `{{`")));
        }
        Some(_) => {}
    }
    let mut header = Header::default();
    let result = serde_json::Deserializer::from_slice(bytes).deserialize_map(HeaderVisitor(&mut header));
    let quoted = format!("\"{FORMAT}\"");
    match (header.format.map(RawValue::get), header.version.map(RawValue::get), result) {
        (Some(format), _, _) if format != quoted => {
            Err(ReadError::NotAPlan(format!("its format is {}, not {quoted}", excerpt(format))))
        }
        (Some(_), Some(version), _) if version.parse() == Ok(VERSION) => Ok(()),
        (Some(_), Some(version), _) => Err(ReadError::Version { found: excerpt(version) }),
        (Some(_), None, Err(error)) => Err(malformed(error)),
        (Some(_), None, Ok(())) => Err(ReadError::NotAPlan("it has no `version`".into())),
        (None, _, Ok(())) => Err(ReadError::NotAPlan(format!("it has no `\"format\":{quoted}`"))),
        (None, _, Err(error)) if error.is_eof() => Err(malformed(error)),
        (None, _, Err(error)) => Err(ReadError::NotAPlan(error.to_string())),
    }
}

struct HeaderVisitor<'h, 'de>(&'h mut Header<'de>);

impl<'de> de::Visitor<'de> for HeaderVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a plan")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while self.0.format.is_none() || self.0.version.is_none() {
            match map.next_key::<String>()?.as_deref() {
                Some("format") => self.0.format = Some(map.next_value()?),
                Some("version") => self.0.version = Some(map.next_value()?),
                Some(_) => drop(map.next_value::<IgnoredAny>()?),
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

/// The beginning of a text from a file that may be hostile, fit to be shown.
pub(crate) fn excerpt(text: &str) -> String {
    const MOST: usize = 60;
    let mut shown = String::new();
    for c in text.chars().take(MOST) {
        match c {
            // Quotes are harmless, and escaped they are harder to read.
            '"' | '\'' | '\\' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(MOST).is_some() { shown + "…" } else { shown }
}

fn write_contents(out: &mut impl Write, plan: &Plan) -> io::Result<()> {
    let Plan { format, version, model, settings, mesh, programs, roles } = plan;
    write!(out, "{{")?;
    field(out, "format", format)?;
    field(out, "version", version)?;
    field(out, "model", model)?;
    writeln!(out)?;
    field(out, "settings", settings)?;
    writeln!(out)?;
    field(out, "mesh", mesh)?;
    writeln!(out)?;
    list(out, 0, "programs", programs, write_program)?;
    list(out, 0, "roles", roles, write_role)
}

fn write_program(out: &mut impl Write, program: &Program) -> io::Result<()> {
    let Program { name, slots, buffers, streams, events, instructions } = program;
    write!(out, "{{")?;
    field(out, "name", name)?;
    field(out, "streams", streams)?;
    field(out, "events", events)?;
    writeln!(out)?;
    list(out, 2, "slots", slots, json)?;
    list(out, 2, "buffers", buffers, json)?;
    last_list(out, 2, "instructions", instructions, json)?;
    write!(out, "}}")
}

fn write_role(out: &mut impl Write, role: &Role) -> io::Result<()> {
    let Role {
        name,
        coordinates,
        device_bytes,
        host_bytes,
        persistent_bytes,
        host_persistent_bytes,
        tensors,
        layers,
        phases,
    } = role;
    write!(out, "{{")?;
    field(out, "name", name)?;
    field(out, "coordinates", coordinates)?;
    field(out, "device_bytes", device_bytes)?;
    field(out, "host_bytes", host_bytes)?;
    field(out, "persistent_bytes", persistent_bytes)?;
    field(out, "host_persistent_bytes", host_persistent_bytes)?;
    writeln!(out)?;
    list(out, 2, "tensors", tensors, json)?;
    list(out, 2, "layers", layers, json)?;
    last_list(out, 2, "phases", phases, write_phase)?;
    write!(out, "}}")
}

fn write_phase(out: &mut impl Write, phase: &Phase) -> io::Result<()> {
    let Phase { name, rows, seq, feeds, scalars, calls, commit, reports, outputs, memory } = phase;
    write!(out, "{{")?;
    field(out, "name", name)?;
    field(out, "rows", rows)?;
    field(out, "seq", seq)?;
    field(out, "commit", commit)?;
    writeln!(out)?;
    list(out, 4, "feeds", feeds, json)?;
    list(out, 4, "scalars", scalars, json)?;
    list(out, 4, "calls", calls, json)?;
    list(out, 4, "reports", reports, json)?;
    list(out, 4, "outputs", outputs, json)?;
    write!(out, "{:4}\"memory\":", "")?;
    json(out, memory)?;
    write!(out, "}}")
}

fn json<W: Write>(out: &mut W, value: &impl serde::Serialize) -> io::Result<()> {
    serde_json::to_writer(out, value).map_err(io::Error::from)
}

fn field<W: Write>(out: &mut W, name: &str, value: &impl serde::Serialize) -> io::Result<()> {
    write!(out, "\"{name}\":")?;
    json(out, value)?;
    write!(out, ",")
}

type WriteItem<W, T> = fn(&mut W, &T) -> io::Result<()>;

/// A field with one item on a line, and a comma.
fn list<W: Write, T>(out: &mut W, indent: usize, name: &str, items: &[T], item: WriteItem<W, T>) -> io::Result<()> {
    last_list(out, indent, name, items, item)?;
    writeln!(out, ",")
}

fn last_list<W: Write, T>(
    out: &mut W,
    indent: usize,
    name: &str,
    items: &[T],
    item: WriteItem<W, T>,
) -> io::Result<()> {
    write!(out, "{:indent$}\"{name}\":[", "")?;
    for (i, value) in items.iter().enumerate() {
        write!(out, "{}\n {:indent$}", if i == 0 { "" } else { "," }, "")?;
        item(out, value)?;
    }
    write!(out, "]")
}

/// Passes bytes on, and hashes them: 64-bit FNV-1a, which anyone can write down from memory. Against accidents, not against forgers.
struct Hashed<W> {
    out: W,
    hash: u64,
}

impl<W: Write> Hashed<W> {
    fn new(out: W) -> Hashed<W> {
        Hashed { out, hash: 0xcbf2_9ce4_8422_2325 }
    }

    fn checksum(&self) -> String {
        format!("{:016x}", self.hash)
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        for &byte in &bytes[..written] {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
