//! `forebay rules`

use crate::failure::Failure;
use crate::output::{print, print_json};
use forebay_compiler::rewrite::{self, RuleInfo};
use serde_json::json;

/// List the rewriting rules: what each says, when it applies, and what it may change
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay rules
  forebay rules attention
  forebay rules --json

A rule says that two forms are equal: left = right. Sums and products match in any order and grouping.
  exact          equal bits
  reassociates   the order and place of roundings may change
  approximate    a function may stand in place of one that is equal in the reals")]
pub struct Args {
    /// Rules whose names begin so
    #[arg(value_name = "NAME", default_value = "")]
    name: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn rules(args: Args) -> Result<(), Failure> {
    let rules: Vec<RuleInfo> = rewrite::rules().into_iter().filter(|r| r.name.starts_with(&args.name)).collect();
    if rules.is_empty() {
        return Err(Failure::Input(format!("no rule's name begins with `{}`: `forebay rules` lists them", args.name)));
    }
    if args.json {
        let rule = |r: &RuleInfo| {
            json!({
                "name": r.name, "meaning": r.meaning, "numerics": r.numerics.name(), "left": r.left, "right": r.right,
                "conditions": r.conditions,
            })
        };
        return print_json(&rules.iter().map(rule).collect::<Vec<_>>());
    }
    let mut text = String::new();
    for rule in &rules {
        text += &format!(
            "{:<36}{}\n    {}\n    {}\n  = {}\n",
            rule.name,
            rule.numerics.name(),
            rule.meaning,
            rule.left,
            rule.right
        );
        if !rule.conditions.is_empty() {
            text += &format!("    where {}\n", rule.conditions.join(", "));
        }
        text += "\n";
    }
    print(&format!("{text}{} rules\n", rules.len()))
}
