//! How commands fail: what is said, and the exit status.

use crate::say::say;
use std::io::IsTerminal;
use std::process::ExitCode;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// The input is wrong: a sentence.
    Input(String),
    /// The input is wrong, and what is wrong has been rendered.
    Rendered(String),
    /// The command line is wrong.
    Usage(String),
    /// Something was found that the command exists to find, and it has been said.
    Found,
    /// The user stopped it.
    Interrupted,
    /// Nobody reads the output any more.
    Closed,
}

impl Failure {
    /// What is said.
    pub fn text(&self) -> &str {
        match self {
            Failure::Input(text) | Failure::Rendered(text) | Failure::Usage(text) => text,
            Failure::Found => "something was found",
            Failure::Interrupted => "it was interrupted",
            Failure::Closed => "nobody reads its output any more",
        }
    }

    /// Says why, and gives the exit status.
    pub fn report(self) -> ExitCode {
        let (label, bold, reset) =
            if colors() { ("\x1b[1;31merror\x1b[0m", "\x1b[1m", "\x1b[0m") } else { ("error", "", "") };
        match self {
            Failure::Input(message) => {
                say!("{label}{bold}:{reset} {message}");
                ExitCode::from(1)
            }
            Failure::Rendered(text) => {
                say!("{}", text.trim_end());
                ExitCode::from(1)
            }
            Failure::Usage(message) => {
                say!("{label}{bold}:{reset} {message}\n\nFor more information, try '--help'.");
                ExitCode::from(2)
            }
            Failure::Found => ExitCode::from(1),
            Failure::Interrupted => ExitCode::from(130),
            Failure::Closed => ExitCode::SUCCESS,
        }
    }
}

impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Input(error.to_string())
    }
}

/// Are colours wanted on stderr?
pub fn colors() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// A panic is always a mistake of this program: says so, and what to do.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("no message");
        let place = info.location().map_or(String::new(), |l| format!(" at {}:{}", l.file(), l.line()));
        let command: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
        say!("internal error: {message}{place}");
        say!("  this is a mistake in forebay {}, not in your input", env!("CARGO_PKG_VERSION"));
        say!("  help: please report it with the model file and this command: {}", command.join(" "));
        let trace = std::backtrace::Backtrace::capture();
        match trace.status() {
            std::backtrace::BacktraceStatus::Captured => say!("{trace}"),
            _ => say!("  RUST_BACKTRACE=1 shows where it comes from"),
        }
    }));
}
