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
    /// Instructions of a stream that nothing comes between are launched as one.
    Capture,
}

impl Pass {
    /// All of them, in the order in which they run.
    pub const ALL: [Pass; 6] = [Pass::Vector, Pass::Within, Pass::Across, Pass::Borders, Pass::Units, Pass::Capture];

    /// Its name in strategies.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Vector => "vector",
            Pass::Within => "within",
            Pass::Across => "across",
            Pass::Borders => "borders",
            Pass::Units => "units",
            Pass::Capture => "capture",
        }
    }
}

/// Some of the passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passes(Vec<Pass>);

impl Default for Passes {
    fn default() -> Passes {
        Passes(Pass::ALL.to_vec())
    }
}

impl Passes {
    /// None of them.
    pub fn none() -> Passes {
        Passes(vec![])
    }

    /// From `all`, `none`, or names separated by `/`, each once.
    pub fn parse(text: &str) -> Option<Passes> {
        let named = |name: &str| Pass::ALL.into_iter().find(|pass| pass.name() == name.trim());
        match text {
            "all" => Some(Passes::default()),
            "none" => Some(Passes::none()),
            names => {
                let mut passes: Vec<Pass> = names.split('/').map(named).collect::<Option<_>>()?;
                passes.sort_unstable();
                let is_once = passes.windows(2).all(|pair| pair[0] != pair[1]);
                is_once.then_some(Passes(passes))
            }
        }
    }

    /// All but one.
    pub fn without(&self, pass: Pass) -> Passes {
        Passes(self.0.iter().copied().filter(|other| *other != pass).collect())
    }

    /// Does it run?
    pub fn has(&self, pass: Pass) -> bool {
        self.0.contains(&pass)
    }
}

/// As [`Passes::parse`] reads it.
impl fmt::Display for Passes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0 => f.write_str("none"),
            n if n == Pass::ALL.len() => f.write_str("all"),
            _ => f.write_str(&self.0.iter().map(|pass| pass.name()).collect::<Vec<_>>().join("/")),
        }
    }
}
