//! Hosts files: an address and a number of ranks on each line.
//!
//! ```text
//! # two machines
//! 10.0.0.1:7000   4
//! 10.0.0.2:7000   4
//! ```

use crate::failure::{Failure, colors};
use crate::files::{SMALL, read_text};
use forebay_dsl::ast::Span;
use forebay_dsl::diagnostics::{Diagnostic, Source, SourceId, render};
use std::path::Path;

/// Ranks of a host at most; what plans have is checked later.
const MOST_RANKS: u32 = 1 << 20;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// `10.0.0.1:7000`
    pub address: String,
    pub ranks: u32,
    /// Where the number stands.
    place: (usize, usize),
}

/// A file that was read.
#[derive(Debug)]
pub struct HostsFile {
    name: String,
    text: String,
    /// At least one.
    pub hosts: Vec<Host>,
}

impl HostsFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<HostsFile, Failure> {
        let name = path.display().to_string();
        let text = read_text(path, SMALL)?;
        let hosts = parse(&text).map_err(|errors| rendered(&errors, &name, &text))?;
        Ok(HostsFile { name, text, hosts })
    }

    /// Are there as many ranks as in the plan?
    pub fn fits(&self, ranks: u32) -> Result<(), Failure> {
        let have: u64 = self.hosts.iter().map(|host| u64::from(host.ranks)).sum();
        if have == u64::from(ranks) {
            return Ok(());
        }
        let last = self.hosts.last().expect("a hosts file has a host");
        let error = error(last.place, format!("the hosts have {have} ranks, the plan has {ranks}"))
            .label("the last of them")
            .help("change these numbers, or the --strategy: its ranks are dp × cp × tp × pp");
        Err(rendered(&[error], &self.name, &self.text))
    }
}

fn rendered(errors: &[Diagnostic], name: &str, text: &str) -> Failure {
    Failure::Rendered(render(errors, &[Source::new(name, text)], colors()))
}

fn error((start, end): (usize, usize), message: impl Into<String>) -> Diagnostic {
    Diagnostic::error("H0001", SourceId(0), Span { start: start as u32, end: end as u32 }, message)
}

fn parse(text: &str) -> Result<Vec<Host>, Vec<Diagnostic>> {
    let (mut hosts, mut errors): (Vec<Host>, Vec<Diagnostic>) = (vec![], vec![]);
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let content = line.split('#').next().unwrap_or_default();
        match host(content, start, &hosts) {
            Some(Ok(host)) => hosts.push(host),
            Some(Err(error)) => errors.push(*error),
            None => {}
        }
        start += line.len();
    }
    if hosts.is_empty() && errors.is_empty() {
        errors.push(error((text.len(), text.len()), "no host is named").help(EXAMPLE));
    }
    if errors.is_empty() { Ok(hosts) } else { Err(errors) }
}

const EXAMPLE: &str = "a line is an address and a number of ranks: 10.0.0.1:7000 4";

/// The host of a line, if it has one.
fn host(content: &str, start: usize, before: &[Host]) -> Option<Result<Host, Box<Diagnostic>>> {
    let mut fields = content.split_whitespace();
    let place = |field: &str| {
        let at = start + (field.as_ptr() as usize - content.as_ptr() as usize);
        (at, at + field.len())
    };
    let address = fields.next()?;
    Some((|| {
        let (name, port) = address.rsplit_once(':').unwrap_or((address, ""));
        if name.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
            let error = error(place(address), format!("`{address}` is not an address with a port"));
            return Err(Box::new(error.label("a port is a number from 1 to 65535").help(EXAMPLE)));
        }
        if let Some(other) = before.iter().position(|host| host.address == address) {
            let error = error(place(address), format!("`{address}` is host {other} already"));
            let help = "every host has an address of its own; give it all of its ranks in one line";
            return Err(Box::new(error.help(help)));
        }
        let Some(number) = fields.next() else {
            let error = error(place(address), format!("how many ranks run at `{address}` is not said"));
            return Err(Box::new(error.help(EXAMPLE)));
        };
        let ranks = number.parse().ok().filter(|n| (1..=MOST_RANKS).contains(n));
        let Some(ranks) = ranks else {
            let error = error(place(number), format!("`{number}` is not a number of ranks"));
            return Err(Box::new(error.label(format!("from 1 to {MOST_RANKS}")).help(EXAMPLE)));
        };
        if let Some(more) = fields.next() {
            let error = error(place(more), format!("`{more}` has no meaning here"));
            return Err(Box::new(error.help("a comment begins with `#`")));
        }
        Ok(Host { address: address.to_string(), ranks, place: place(number) })
    })())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_comments() {
        let hosts = parse("# two\n\n a.example:7000\t4 # fast\n[::1]:7001 1").expect("two hosts");
        let short: Vec<(&str, u32)> = hosts.iter().map(|host| (host.address.as_str(), host.ranks)).collect();
        assert_eq!(short, [("a.example:7000", 4), ("[::1]:7001", 1)]);
    }

    #[test]
    fn mistakes_are_shown_where_they_are() {
        for (text, underlined, message) in [
            ("a:1 2\nb 2", "b", "`b` is not an address with a port"),
            ("a:0 1", "a:0", "`a:0` is not an address with a port"),
            ("a:70000 1", "a:70000", "is not an address with a port"),
            (":7 1", ":7", "is not an address with a port"),
            ("a:1 # 2", "a:1", "how many ranks run at `a:1` is not said"),
            ("a:1 none", "none", "`none` is not a number of ranks"),
            ("a:1 0", "0", "`0` is not a number of ranks"),
            ("a:1 1 x", "x", "`x` has no meaning here"),
            ("a:1 1\na:1 1", "a:1", "`a:1` is host 0 already"),
            ("# nobody\n", "", "no host is named"),
        ] {
            let errors = parse(text).expect_err(text);
            assert_eq!(errors.len(), 1, "{text}");
            let Span { start, end } = errors[0].span;
            assert_eq!(&text[start as usize..end as usize], underlined, "{text}");
            assert!(errors[0].message.contains(message) && errors[0].help.is_some(), "{errors:?}");
        }
    }
}
