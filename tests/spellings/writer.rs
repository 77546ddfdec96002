//! Writes model source by random choices: which of several equal expressions, in which order, inlined or under a name.

use std::collections::BTreeSet;

/// A seeded source of choices (splitmix64).
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// One way to write a model.
pub struct Spelling {
    /// The whole file.
    pub source: String,
    /// What was chosen, each choice once.
    pub choices: Vec<&'static str>,
}

/// Names of intermediates; none is a word of the language or a name of the frames below.
const VALUES: [&str; 10] = ["part", "value", "inner", "mid", "term", "piece", "item", "half_way", "thing", "it"];

/// The block under test, as the model calls it.
pub struct Call<'a> {
    /// The block's tensor parameters, and what the model passes for them.
    pub parameters: Vec<(String, &'a str)>,
    /// Constants that the block takes from the model.
    pub constants: &'a [&'a str],
    /// Each result's name in the model, and its expression in the block.
    pub results: Vec<(&'a str, String)>,
}

/// The statements of a block, and the choices made for them.
pub struct Writer<'r> {
    rng: &'r mut Rng,
    choices: Vec<&'static str>,
    lines: Vec<String>,
    taken: BTreeSet<String>,
    /// The statements stand in the model itself, not in a block that it calls.
    pub inline: bool,
    /// Nothing is converted: `wide` and `narrow` are left out, which is the same in f32 and f64 and is not in bf16.
    pub plain: bool,
}

impl<'r> Writer<'r> {
    /// An empty block; `taken` are the names of the model's constants, inputs, parameters and values.
    pub fn new(rng: &'r mut Rng, taken: &str) -> Writer<'r> {
        let taken = taken.split_whitespace().chain(["batch", "seq", "tokens", "labels", "x", "y"]);
        let taken = taken.map(str::to_string).collect();
        let mut w = Writer { rng, choices: vec![], lines: vec![], taken, inline: false, plain: false };
        w.inline = w.choose(&["in a block", "in a block", "in the model"]) == "in the model";
        w.plain = w.choose(&["wide", "wide", "wide", "no wide or narrow"]) == "no wide or narrow";
        w
    }

    /// One of several, noted down.
    pub fn choose(&mut self, options: &[&'static str]) -> &'static str {
        let choice = options[self.rng.below(options.len())];
        self.note(choice);
        choice
    }

    /// A number below n, not noted down.
    pub fn choose_index(&mut self, n: usize) -> usize {
        self.rng.below(n)
    }

    /// One of several texts, not noted down.
    pub fn any<'a>(&mut self, options: &[&'a str]) -> &'a str {
        options[self.rng.below(options.len())]
    }

    fn note(&mut self, choice: &'static str) {
        if !self.choices.contains(&choice) {
            self.choices.push(choice);
        }
    }

    fn half(&mut self) -> bool {
        self.rng.below(2) == 0
    }

    /// A new name, of an axis for instance.
    pub fn fresh(&mut self, pool: &[&str]) -> String {
        let first = self.rng.below(pool.len());
        let free = (0..pool.len()).map(|i| pool[(first + i) % pool.len()]).find(|n| !self.taken.contains(*n));
        let name = free.map(str::to_string).unwrap_or_else(|| {
            (1..).map(|i| format!("{}_{i}", pool[first])).find(|n| !self.taken.contains(n)).unwrap()
        });
        self.taken.insert(name.clone());
        name
    }

    /// A statement.
    pub fn line(&mut self, text: String) {
        self.lines.push(text);
    }

    /// The value under a new name.
    pub fn named(&mut self, text: &str) -> String {
        let name = self.fresh(&VALUES);
        self.line(format!("{name} = {text}"));
        name
    }

    /// The value under a new name or as it is.
    pub fn maybe(&mut self, text: impl AsRef<str>) -> String {
        let text = text.as_ref();
        if !is_name(text) && self.half() { self.named(text) } else { text.to_string() }
    }

    /// The same for a value that is used several times: mostly under a name.
    pub fn shared(&mut self, text: impl AsRef<str>) -> String {
        let text = text.as_ref();
        if is_name(text) {
            text.to_string()
        } else if self.rng.below(4) == 0 && text.len() < 60 {
            self.note("written twice");
            text.to_string()
        } else {
            self.named(text)
        }
    }

    /// A constant, under a name or as it is.
    pub fn constant(&mut self, text: &str) -> String {
        if self.half() {
            let name = self.fresh(&["scale", "factor", "c0", "number"]);
            self.line(format!("const {name} = {text}"));
            name
        } else {
            text.to_string()
        }
    }

    fn commuted(&mut self, a: &str, op: &str, b: &str) -> String {
        let (a, b) = if self.half() { (a, b) } else { (b, a) };
        format!("{} {op} {}", group(a), group(b))
    }

    /// `a * b`
    pub fn mul(&mut self, a: &str, b: &str) -> String {
        self.commuted(a, "*", b)
    }

    /// `a + b`
    pub fn add(&mut self, a: &str, b: &str) -> String {
        self.commuted(a, "+", b)
    }

    /// A function of two arguments whose order is free: `min`, `max`.
    pub fn both(&mut self, function: &str, a: &str, b: &str) -> String {
        let (a, b) = if self.half() { (a, b) } else { (b, a) };
        format!("{function}({a}, {b})")
    }

    /// `a - b`
    pub fn sub(&mut self, a: &str, b: &str) -> String {
        match self.rng.below(8) {
            0 => {
                self.note("difference as a sum");
                self.add(a, &neg(b))
            }
            1 => {
                self.note("difference turned around");
                neg(&format!("{} - {}", group(b), group(a)))
            }
            _ => format!("{} - {}", group(a), group(b)),
        }
    }

    /// `a / b`
    pub fn div(&mut self, a: &str, b: &str) -> String {
        match self.choose(&["a / b", "a * (1 / b)"]) {
            "a / b" => format!("{} / {}", group(a), group(b)),
            _ => {
                let inverse = self.maybe(format!("1.0 / {}", group(b)));
                self.mul(a, &inverse)
            }
        }
    }

    /// A product of any grouping and order.
    pub fn product(&mut self, factors: &[&str]) -> String {
        let mut factors: Vec<String> = factors.iter().map(|f| f.to_string()).collect();
        while factors.len() > 1 {
            let a = factors.swap_remove(self.rng.below(factors.len()));
            let b = factors.swap_remove(self.rng.below(factors.len()));
            let product = self.mul(&a, &b);
            let product = if factors.is_empty() { product } else { self.maybe(product) };
            factors.push(product);
        }
        factors.remove(0)
    }

    /// The items in any order.
    pub fn shuffled<T>(&mut self, mut items: Vec<T>) -> Vec<T> {
        for i in (1..items.len()).rev() {
            items.swap(i, self.rng.below(i + 1));
        }
        items
    }

    /// `x * x`
    pub fn square(&mut self, x: &str) -> String {
        match self.choose(&["x * x", "x ^ 2"]) {
            "x * x" => format!("{0} * {0}", group(x)),
            _ => format!("{} ^ 2.0", group(x)),
        }
    }

    /// `exp(-x)`
    pub fn exp_neg(&mut self, x: &str) -> String {
        match self.choose(&["exp(-x)", "1 / exp(x)"]) {
            "exp(-x)" => format!("exp({})", neg(x)),
            _ => format!("1.0 / exp({x})"),
        }
    }

    /// `wide(x)`, which may be left out in a plain spelling.
    pub fn wide(&self, x: &str) -> String {
        if self.plain { x.to_string() } else { format!("wide({x})") }
    }

    /// `narrow(x)`
    pub fn narrow(&self, x: &str) -> String {
        if self.plain { x.to_string() } else { format!("narrow({x})") }
    }

    /// The product of two tensors, summed over what `axes` lacks.
    pub fn contract(&mut self, axes: &str, a: &str, b: &str) -> String {
        let product = if is_product(a) && self.half() {
            self.note("contraction of several factors");
            format!("{a} * {}", group(b))
        } else {
            self.mul(a, b)
        };
        self.define(axes, &product)
    }

    /// A definition with indices, as a statement or in place.
    pub fn define(&mut self, axes: &str, text: &str) -> String {
        if self.half() {
            format!("({text})[{axes}]")
        } else {
            let name = self.fresh(&VALUES);
            self.line(format!("{name}[{axes}] = {text}"));
            name
        }
    }

    /// The file: the model's statements before and after the block under test, and the block, if it is one.
    pub fn finish(mut self, constants: &str, before: &[String], call: Call<'_>, after: &[&str]) -> Spelling {
        let mut model: Vec<String> = before.to_vec();
        let mut block = String::new();
        if self.inline {
            model.append(&mut self.lines);
            model.extend(call.results.iter().map(|(name, text)| format!("{name} = {text}")));
        } else {
            let name = self.fresh(&["mine", "my_block", "layer_of_mine", "custom"]);
            let results: Vec<&str> = call.results.iter().map(|(n, _)| *n).collect();
            let arguments: Vec<&str> = call.parameters.iter().map(|(_, a)| *a).collect();
            model.push(format!("{} = {name}({})", results.join(", "), arguments.join(", ")));
            let patterns = call.parameters.iter().map(|(p, _)| p.as_str());
            let patterns: Vec<&str> = patterns.chain(call.constants.iter().copied()).collect();
            let returned: Vec<&str> = call.results.iter().map(|(_, text)| text.as_str()).collect();
            let lines: String = self.lines.iter().map(|l| format!("    {l}\n")).collect();
            let header = format!("\nblock {name}({})", patterns.join(", "));
            block = format!("{header} {{\n{lines}    return {}\n}}\n", returned.join(", "));
        }
        model.extend(after.iter().map(|l| l.to_string()));
        Spelling { source: file(constants, &model, &block), choices: self.choices }
    }
}

/// A model file.
pub fn file(constants: &str, body: &[String], blocks: &str) -> String {
    let body: String = body.iter().map(|l| format!("    {l}\n")).collect();
    let inputs = "input tokens: token[batch, seq], labels: token[batch, seq]";
    format!("model Spelled(batch = 2, seq = 5, vocab = 7, {constants}) {{\n    {inputs}\n{body}}}\n{blocks}")
}

/// A bare name or number, as against something computed.
pub fn is_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Factors and nothing else.
fn is_product(text: &str) -> bool {
    let mut depth = 0;
    let outside = text.chars().filter(|c| {
        depth += i32::from(matches!(c, '(' | '[')) - i32::from(matches!(c, ')' | ']'));
        depth == 0
    });
    let outside: String = outside.collect();
    let mut words = outside.split(' ').skip(1).step_by(2).peekable();
    words.peek().is_some() && words.all(|word| word == "*")
}

/// `-x`
pub fn neg(x: &str) -> String {
    format!("-{}", group(x))
}

/// The text as an operand: in parentheses unless it binds strongly enough.
pub fn group(text: &str) -> String {
    let mut depth = 0;
    for c in text.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ' ' | '-' if depth == 0 => return format!("({text})"),
            _ => {}
        }
    }
    text.to_string()
}
