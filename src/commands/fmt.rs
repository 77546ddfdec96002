//! `forebay fmt`

use crate::failure::Failure;
use crate::files::replace_file;
use crate::model::ModelFile;
use crate::say::say;
use std::path::PathBuf;

/// Write model files in their canonical form
///
/// Only white space and line breaks change; comments stay. A file with errors is left as it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay fmt model.moe
  forebay fmt --check examples/models/*.moe")]
pub struct Args {
    /// The files
    #[arg(value_name = "MODEL", required = true)]
    files: Vec<PathBuf>,
    /// Change nothing; name the files that would change, and fail if there are any
    #[arg(long)]
    check: bool,
}

pub fn fmt(args: Args) -> Result<(), Failure> {
    let mut wrong = String::new();
    let mut unformatted = false;
    for path in &args.files {
        let formatted = ModelFile::read_file(path).and_then(|file| Ok((formatted(&file)?, file)));
        match formatted {
            Err(Failure::Rendered(text)) => wrong.push_str(&format!("{}\n\n", text.trim_end())),
            Err(Failure::Input(text)) => wrong.push_str(&format!("error: {text}\n\n")),
            Err(failure) => return Err(failure),
            Ok((formatted, file)) if formatted == file.text() => {}
            Ok(_) if args.check => {
                say!("{} is not formatted", path.display());
                unformatted = true;
            }
            Ok((formatted, _)) => replace_file(path, formatted.as_bytes())?,
        }
    }
    match (wrong.is_empty(), unformatted) {
        (false, _) => Err(Failure::Rendered(wrong)),
        (true, true) => {
            say!("help: `forebay fmt` with the same files formats them");
            Err(Failure::Found)
        }
        (true, false) => Ok(()),
    }
}

fn formatted(file: &ModelFile) -> Result<String, Failure> {
    forebay_dsl::format::format(file.text()).map_err(|diagnostics| Failure::Rendered(file.render(&diagnostics)))
}
