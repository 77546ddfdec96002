//! Random programs that are correct, with white space and comments wherever the language allows them.
//!
//! A program is generated as text with markers, which a second step replaces by white space, line ends and comments.

use proptest::prelude::*;

/// Inside brackets, white space may stand here; elsewhere nothing.
const IN_SOFT: char = '\u{e000}';
/// Inside brackets, white space with line ends must stand here; elsewhere a space.
const IN_GAP: char = '\u{e001}';
/// White space with line ends may stand here.
const SOFT: char = '\u{e002}';
/// White space must stand here, and it may have line ends.
const GAP: char = '\u{e003}';
/// A statement ends here.
const END: char = '\u{e004}';

type Text = BoxedStrategy<String>;

/// A whole file.
pub fn program() -> impl Strategy<Value = String> {
    let items = prop::collection::vec(item(), 0..3).prop_map(|items| items.join(&END.to_string()));
    (items, prop::collection::vec(any::<u8>(), 1..200)).prop_map(|(text, choices)| space_out(&text, &choices))
}

/// Replaces the markers. Comments are numbered, so that a lost or moved one is noticed.
fn space_out(text: &str, choices: &[u8]) -> String {
    let mut out = String::new();
    let mut choices = choices.iter().cycle();
    let mut comments = 0;
    for character in text.chars() {
        let choice = match character {
            IN_SOFT => continue,
            IN_GAP => {
                out.push(' ');
                continue;
            }
            SOFT | GAP | END => *choices.next().expect("there is a choice"),
            _ => {
                out.push(character);
                continue;
            }
        };
        let comment = format!("// c{comments}");
        // Small numbers are plain, so that failures shrink to what matters.
        let space = match (character, choice) {
            (END, 0..100) => "\n".into(),
            (END, 100..110) => "\r\n".into(),
            (END, 110..130) => ";".into(),
            (END, 130..150) => " ;; \n".into(),
            (END, 150..180) => "\n\n\n".into(),
            (END, 180..210) => format!(" {comment}\n"),
            (END, 210..230) => format!("\n{comment}\n"),
            (END, 230..240) => format!("; {comment}\n"),
            (END, _) => format!("\n\n\n  {comment}   \n\n"),
            (SOFT, 0..120) => String::new(),
            (_, 0..210) => " ".into(),
            (_, 210..225) => "\n".into(),
            (_, 225..235) => "\t\r\n\n ".into(),
            (_, 235..245) => format!(" {comment}\n"),
            (_, _) => format!("\n{comment}\n"),
        };
        comments += usize::from(space.contains("//"));
        out += &space;
    }
    out
}

/// `open … close` with the markers inside now meaning what they say.
fn bracketed(open: &str, inner: &str, close: &str) -> String {
    let inner = inner.replace(IN_SOFT, &SOFT.to_string()).replace(IN_GAP, &GAP.to_string());
    format!("{open}{SOFT}{inner}{SOFT}{close}")
}

fn list(open: &'static str, close: &'static str, item: impl Strategy<Value = String> + 'static, max: usize) -> Text {
    (prop::collection::vec(item, 0..=max), any::<bool>())
        .prop_map(move |(items, comma)| {
            let comma = if comma && !items.is_empty() { "," } else { "" };
            bracketed(open, &format!("{}{comma}", items.join(&format!("{IN_SOFT},{IN_SOFT}"))), close)
        })
        .boxed()
}

/// Items separated by commas outside of brackets: a line goes on after a comma.
fn comma_list(item: impl Strategy<Value = String> + 'static) -> Text {
    prop::collection::vec(item, 1..3).prop_map(|items| items.join(&format!(",{SOFT}"))).boxed()
}

/// Names, among them the words that are operators elsewhere.
fn name() -> Text {
    const NAMES: &[&str] = &[
        "x",
        "y",
        "d",
        "e",
        "batch",
        "a_name_that_is_rather_long",
        "_",
        "over",
        "at",
        "per",
        "weight",
        "scope",
        "as",
        "in",
        "into",
        "Error",
    ];
    prop::sample::select(NAMES).prop_map(String::from).boxed()
}

fn literal() -> Text {
    const LITERALS: &[&str] = &[
        "0",
        "12",
        "1_000",
        "9223372036854775807",
        "0.5",
        "1e-6",
        "2.5E+3",
        "\"yarn // no comment\"",
        "\"\"",
        "true",
        "false",
        "none",
    ];
    prop::sample::select(LITERALS).prop_map(String::from).boxed()
}

fn expression() -> Text {
    let leaf = prop_oneof![3 => name(), 1 => literal()];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let inner = inner.boxed();
        prop_oneof![
            4 => logical(atom(inner.clone())),
            2 => atom(inner.clone()),
            1 => (logical(atom(inner.clone())), logical(atom(inner)))
                .prop_map(|(value, rows)| format!("({value}){GAP}at{IN_GAP}{rows}")),
        ]
    })
    .boxed()
}

/// An operand: what is in brackets is any expression.
fn atom(inner: Text) -> Text {
    let paren = inner.clone().prop_map(|value| bracketed("(", &value, ")"));
    let read = (name(), indices(inner.clone(), true)).prop_map(|(name, indices)| format!("{name}{IN_SOFT}{indices}"));
    let shape = (paren.clone(), indices(inner.clone(), false)).prop_map(|(value, indices)| format!("{value}{indices}"));
    let again = (call(inner.clone()), indices(inner, true)).prop_map(|(call, indices)| format!("{call}{indices}"));
    prop_oneof![3 => name(), 1 => literal(), 1 => paren, 2 => read, 1 => shape, 3 => again].boxed()
}

/// `[not] arithmetic [< arithmetic]` with `and` and `or` in between.
fn logical(atom: Text) -> Text {
    let comparison = prop::sample::select(&["==", "!=", "<", "<=", ">", ">="][..]);
    let part = (0..3usize, arithmetic(atom.clone()), prop::option::weighted(0.2, (comparison, arithmetic(atom))))
        .prop_map(|(nots, left, right)| {
            let nots = format!("not{IN_GAP}").repeat(nots.saturating_sub(1));
            let right = right.map(|(op, right)| format!("{SOFT}{op}{SOFT}{right}"));
            format!("{nots}{left}{}", right.unwrap_or_default())
        })
        .boxed();
    chain(part, &["and", "or"], GAP, 2)
}

fn arithmetic(atom: Text) -> Text {
    let signed = (0..4usize, atom).prop_map(|(n, atom)| format!("{}{atom}", format!("-{IN_SOFT}").repeat(n / 2)));
    chain(signed.boxed(), &["+", "-", "*", "/", "%", "^"], SOFT, 3)
}

fn chain(part: Text, operators: &'static [&'static str], space: char, max: usize) -> Text {
    let more = (prop::sample::select(operators), part.clone());
    (part, prop::collection::vec(more, 0..max))
        .prop_map(move |(first, more)| {
            more.into_iter().fold(first, |text, (op, part)| format!("{text}{space}{op}{space}{part}"))
        })
        .boxed()
}

fn call(inner: Text) -> Text {
    let one_axis = call_of("f", inner.clone(), axis_or_rest().boxed(), 3);
    let several = prop::collection::vec(name(), 1..3).prop_map(|axes| axes.join(&format!("{IN_SOFT},{IN_SOFT}")));
    let several = call_of("sum", inner, several.boxed(), 1);
    prop_oneof![one_axis, several].boxed()
}

fn axis_or_rest() -> impl Strategy<Value = String> {
    prop_oneof![4 => name(), 1 => Just("..".to_string())]
}

fn call_of(callee: &'static str, inner: Text, over: Text, max: usize) -> Text {
    let clause = |word: &'static str, text: Text| {
        prop::option::weighted(0.3, text.prop_map(move |text| format!("{IN_GAP}{word}{IN_GAP}{text}")))
    };
    let positional = (inner.clone(), clause("over", over), clause("into", axis(inner.clone())), clause("as", name()))
        .prop_map(|(value, over, into, renamed)| {
            format!("{value}{}{}{}", over.unwrap_or_default(), into.unwrap_or_default(), renamed.unwrap_or_default())
        });
    let arg = prop_oneof![
        4 => positional,
        1 => (name(), inner.clone()).prop_map(|(name, value)| format!("{name}{IN_SOFT}={IN_SOFT}{value}")),
        1 => (name(), inner).prop_map(|(name, size)| format!("{name}{IN_SOFT}:{IN_SOFT}{size}")),
        1 => Just("..".to_string()),
    ];
    let label = prop::option::weighted(0.2, name().prop_map(|label| format!("@{label}")));
    (label, list("(", ")", arg, max))
        .prop_map(move |(label, args)| format!("{callee}{}{IN_SOFT}{args}", label.unwrap_or_default()))
        .boxed()
}

/// `d` or `e: size`.
fn axis(inner: Text) -> Text {
    (name(), prop::option::weighted(0.3, inner))
        .prop_map(|(name, size)| match size {
            Some(size) => format!("{name}{IN_SOFT}:{IN_SOFT}{size}"),
            None => name,
        })
        .boxed()
}

/// Indices of a reading or of a definition, `..` at most once.
fn indices(inner: Text, reading: bool) -> Text {
    let names = list("(", ")", name(), 3).prop_filter("a merge has parts", |text| text.contains(char::is_alphabetic));
    let form = if reading {
        let size = (name(), inner.clone()).prop_map(|(name, size)| format!("{name}{IN_SOFT}:{IN_SOFT}{size}"));
        let first = (axis(inner.clone()), axis(inner.clone())).prop_map(|(a, b)| format!("{a}{IN_SOFT},{IN_SOFT}{b}"));
        let more = prop::collection::vec(axis(inner.clone()).prop_map(|axis| format!(",{IN_SOFT}{axis}")), 0..2);
        let split = (prop_oneof![2 => first, 1 => size], more)
            .prop_map(|(first, more)| bracketed("(", &format!("{first}{}", more.concat()), ")"));
        let slice = (name(), inner.clone(), inner.clone())
            .prop_map(|(name, from, to)| format!("{name}{IN_SOFT}:{IN_SOFT}{from}{IN_SOFT}..{IN_SOFT}{to}"));
        prop_oneof![4 => inner, 1 => split, 1 => slice, 1 => Just("(..)".to_string())].boxed()
    } else {
        let merge = (name(), names).prop_map(|(name, parts)| format!("{name}{IN_SOFT}:{IN_SOFT}{parts}"));
        let merge_rest = name().prop_map(|name| format!("{name}: (..)"));
        prop_oneof![4 => name(), 1 => merge, 1 => merge_rest].boxed()
    };
    (prop::collection::vec(form, 0..3), prop::option::of(0..4usize))
        .prop_map(|(mut forms, rest)| {
            if let Some(at) = rest {
                forms.insert(at.min(forms.len()), "..".into());
            }
            bracketed("[", &forms.join(&format!("{IN_SOFT},{IN_SOFT}")), "]")
        })
        .boxed()
}

fn target() -> Text {
    (name(), prop::option::of(indices(name(), false)))
        .prop_map(|(name, axes)| format!("{name}{}", axes.unwrap_or_default()))
        .boxed()
}

fn declaration() -> Text {
    let init = (prop::sample::select(&["zeros", "normal"][..]), prop::option::of(list("(", ")", expression(), 2)))
        .prop_map(|(name, args)| format!(" ={SOFT}{name}{}", args.unwrap_or_default()));
    (name(), list("[", "]", axis(expression()), 3), prop::option::of(init))
        .prop_map(|(name, axes, init)| format!("{name}{axes}{}", init.unwrap_or_default()))
        .boxed()
}

fn simple_statement() -> Text {
    let assign = |target: Text| (target, expression()).prop_map(|(target, value)| format!("{target} ={SOFT}{value}"));
    let keyword = |word: &'static str, rest: Text| rest.prop_map(move |rest| format!("{word} {rest}"));
    let input = (name(), list("[", "]", axis(expression()), 3)).prop_map(|(name, axes)| format!("{name}: token{axes}"));
    let clause =
        |word: &'static str| prop::option::of(expression().prop_map(move |value| format!("{GAP}{word} {value}")));
    let scope = prop::option::of(name().prop_map(|name| format!("{GAP}scope {name}")));
    let loss = (assign(name()), clause("per"), clause("weight"), scope).prop_map(|(value, per, weight, scope)| {
        format!("loss {value}{}{}{}", per.unwrap_or_default(), weight.unwrap_or_default(), scope.unwrap_or_default())
    });
    prop_oneof![
        8 => assign(comma_list(target())),
        1 => keyword("input", comma_list(input)),
        1 => keyword("const", assign(name()).boxed()),
        2 => keyword("param", comma_list(declaration())),
        1 => keyword("state", comma_list(declaration())),
        1 => keyword("stat", assign(target()).boxed()),
        1 => keyword("update", assign(name()).boxed()),
        1 => keyword("output", comma_list(name())),
        1 => loss,
    ]
    .boxed()
}

fn body(statement: Text) -> Text {
    let returned = prop::option::weighted(0.2, comma_list(expression()));
    (prop::collection::vec(statement, 0..3), returned)
        .prop_map(|(mut statements, returned)| {
            statements.extend(returned.map(|values| format!("return {values}")));
            if statements.is_empty() {
                return format!("{{{SOFT}}}");
            }
            format!("{{{SOFT}{}{END}}}", statements.join(&END.to_string()))
        })
        .boxed()
}

fn statement() -> Text {
    simple_statement()
        .prop_recursive(2, 12, 3, |inner| {
            let body = body(inner.boxed());
            let counter = prop::option::of(name().prop_map(|name| format!("{name} in ")));
            let repeat = (counter, expression(), body.clone())
                .prop_map(|(counter, count, body)| format!("repeat {}{count} {body}", counter.unwrap_or_default()));
            let branch = (expression(), body.clone()).prop_map(|(condition, body)| format!("if {condition} {body}"));
            let branches = prop::collection::vec(branch, 1..3);
            let choice = (branches, prop::option::of(body)).prop_map(|(branches, otherwise)| {
                let otherwise = otherwise.map(|body| format!("{GAP}else {body}"));
                format!("{}{}", branches.join(&format!("{GAP}else ")), otherwise.unwrap_or_default())
            });
            prop_oneof![simple_statement(), repeat, choice]
        })
        .boxed()
}

fn item() -> Text {
    let constant = (name(), expression()).prop_map(|(name, value)| format!("{name}{IN_SOFT}={IN_SOFT}{value}"));
    let model = (list("(", ")", constant.clone(), 5), body(statement()))
        .prop_map(|(constants, body)| format!("model M{constants} {body}"));
    let pattern = (list("[", "]", name(), 3), prop::option::of(Just(" = none")))
        .prop_map(|(axes, default)| format!("{axes}{}", default.unwrap_or_default()));
    let rest = prop::option::of(Just(" = none")).prop_map(|default| format!("[..]{}", default.unwrap_or_default()));
    let param = prop_oneof![
        constant,
        name(),
        (name(), pattern).prop_map(|(name, pattern)| format!("{name}{IN_SOFT}{pattern}")),
        (name(), rest).prop_map(|(name, pattern)| format!("{name}{pattern}")),
    ];
    let block =
        (list("(", ")", param, 5), body(statement())).prop_map(|(params, body)| format!("block b{params} {body}"));
    prop_oneof![model, block].boxed()
}
