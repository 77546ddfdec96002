//! Which overlap passes run.

use std::fmt;

/// A pass that changes when things run, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pass {
    /// Elementwise work, norms, routers and permutations on the vector unit, beside matrix products that do not need them.
    Vector,
    /// Within a program: independent work beside what is on its way.
    Within,
    /// A forward and a backward pass that a schedule pairs, in one program.
    Across,
    /// The end of a forward pass and the beginning of the next one in one program, while a pipeline fills; the last layers of a backward pass in one.
    Borders,
    /// Parameters of a layer gathered while the layer before runs, gradients summed over ranks while the next one runs.
    Units,
    /// What a backward pass makes again is made while the stage waits for the gradient.
    Early,
    /// Instructions of a stream that nothing comes between are launched as one.
    Capture,
}

impl Pass {
    /// All of them, in the order in which they run.
    pub const ALL: [Pass; 7] =
        [Pass::Vector, Pass::Within, Pass::Across, Pass::Borders, Pass::Units, Pass::Early, Pass::Capture];

    /// Its name in strategies.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Vector => "vector",
            Pass::Within => "within",
            Pass::Across => "across",
            Pass::Borders => "borders",
            Pass::Units => "units",
            Pass::Early => "early",
            Pass::Capture => "capture",
        }
    }
}

/// Some of the passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passes {
    list: Vec<Pass>,
    /// Were they named one by one? Otherwise they are all that are of use, which depends on the rest of the strategy and on the device.
    named: bool,
}

impl Default for Passes {
    fn default() -> Passes {
        Passes { list: Pass::ALL.to_vec(), named: false }
    }
}

impl Passes {
    /// None of them.
    pub fn none() -> Passes {
        Passes { list: vec![], named: true }
    }

    /// From `all`, `none`, or names separated by `/`, each once.
    pub fn parse(text: &str) -> Option<Passes> {
        let named = |name: &str| Pass::ALL.into_iter().find(|pass| pass.name() == name.trim());
        match text {
            "all" => Some(Passes::default()),
            "none" => Some(Passes::none()),
            names => {
                let mut list: Vec<Pass> = names.split('/').map(named).collect::<Option<_>>()?;
                list.sort_unstable();
                let is_once = list.windows(2).all(|pair| pair[0] != pair[1]);
                is_once.then_some(Passes { list, named: true })
            }
        }
    }

    /// Without a pass that is of no use here, unless it was named.
    #[must_use]
    pub fn unless_named(&self, pass: Pass) -> Passes {
        let list = self.list.iter().copied().filter(|other| self.named || *other != pass).collect();
        Passes { list, named: self.named }
    }

    /// Were they named one by one? `none` is.
    pub fn is_named(&self) -> bool {
        self.named
    }

    /// Does it run?
    pub fn has(&self, pass: Pass) -> bool {
        self.list.contains(&pass)
    }
}

/// As [`Passes::parse`] reads it.
impl fmt::Display for Passes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.list.len() {
            _ if !self.named => f.write_str("all"),
            0 => f.write_str("none"),
            _ => f.write_str(&self.list.iter().map(|pass| pass.name()).collect::<Vec<_>>().join("/")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever names all of them has all of them; `all` has those that are of use.
    #[test]
    fn named_passes_stay() {
        let names = Pass::ALL.map(Pass::name).join("/");
        let named = Passes::parse(&names).unwrap();
        assert_eq!(named.to_string(), names);
        assert!(named.unless_named(Pass::Borders).has(Pass::Borders));
        let all = Passes::parse("all").unwrap();
        let some = all.unless_named(Pass::Borders);
        assert!(all.has(Pass::Borders) && !some.has(Pass::Borders) && some.has(Pass::Vector));
        assert!(!some.is_named() && named.is_named() && Passes::none().is_named());
        assert!(Passes::parse("all/within").is_none() && Passes::parse("within/within").is_none());
    }
}
