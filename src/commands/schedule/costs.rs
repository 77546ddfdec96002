//! Costs as they are written on the command line, and in ticks.

use crate::failure::Failure;
use crate::files::{SMALL, read_text};
use forebay_pipeline::layers::{LayerCosts, MAX_LAYERS};
use forebay_pipeline::{Costs, Decimal, Layout, ScheduleError, Ticks};
use std::path::{Path, PathBuf};

/// `F=10,I=12,W=8`: for each one number for all layer groups, or one for each.
#[derive(Clone, Debug)]
pub struct CostSpec {
    forward: Vec<Decimal>,
    input: Vec<Decimal>,
    weight: Vec<Decimal>,
    p2p: Option<Decimal>,
    pair: Option<Decimal>,
}

/// Layers in order, F, I and W of each.
#[derive(Clone, Debug)]
pub struct LayerSpec(Vec<[Decimal; 3]>);

/// What stands behind `--costs`.
#[derive(Clone, Debug)]
pub enum CostArg {
    /// `F=10,I=12,W=8`.
    Listed(CostSpec),
    /// A `.toml` file.
    File(PathBuf),
}

/// `F=10,I=12,W=8`, or a file.
pub fn cost_arg(text: &str) -> Result<CostArg, String> {
    if text.ends_with(".toml") { Ok(CostArg::File(text.into())) } else { spec(listed(text)?).map(CostArg::Listed) }
}

impl CostArg {
    /// The file that they are in.
    pub fn file(&self) -> Option<&Path> {
        match self {
            CostArg::File(path) => Some(path),
            CostArg::Listed(_) => None,
        }
    }

    /// The costs, read from their file.
    pub fn spec(&self) -> Result<CostSpec, Failure> {
        match self {
            CostArg::Listed(costs) => Ok(costs.clone()),
            CostArg::File(path) => {
                let text = read_text(path, SMALL)?;
                let wrong = |error| Failure::Input(format!("`{}`: {error}", path.display()));
                pairs(&text).and_then(spec).map_err(wrong)
            }
        }
    }
}

fn spec(pairs: Pairs) -> Result<CostSpec, String> {
    let mut found: [Option<Vec<Decimal>>; 5] = Default::default();
    const KEYS: [&str; 5] = ["F", "I", "W", "p2p", "pair"];
    for (key, values) in pairs {
        let at = KEYS
            .iter()
            .position(|k| *k == key)
            .ok_or(format!("`{key}` is no cost: there are F, I, W, p2p and pair"))?;
        let parsed = values.iter().map(|v| v.parse()).collect::<Result<Vec<Decimal>, String>>()?;
        if parsed.is_empty() {
            return Err(format!("`{key}` has no cost"));
        }
        if at > 2 && parsed.len() > 1 {
            return Err(format!("`{key}` is one number"));
        }
        if found[at].replace(parsed).is_some() {
            return Err(format!("`{key}` is there twice"));
        }
    }
    let [forward, input, weight, p2p, pair] = found;
    let needed = |values: Option<Vec<Decimal>>, key: &str| values.ok_or(format!("`{key}` is missing: F=10,I=12,W=8"));
    let single = |values: Option<Vec<Decimal>>| values.map(|v| v[0]);
    Ok(CostSpec {
        forward: needed(forward, "F")?,
        input: needed(input, "I")?,
        weight: needed(weight, "W")?,
        p2p: single(p2p),
        pair: single(pair),
    })
}

type Pairs = Vec<(String, Vec<String>)>;

fn listed(text: &str) -> Result<Pairs, String> {
    let pair = |part: &str| {
        let (key, values) =
            part.split_once('=').ok_or(format!("`{part}` is not written KEY=COST, as in F=10,I=12,W=8"))?;
        Ok((key.trim().to_string(), values.split('/').map(|v| v.trim().to_string()).collect()))
    };
    text.split(',').map(pair).collect()
}

/// The entries of a file.
fn pairs(text: &str) -> Result<Pairs, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let pair = |(key, value): (String, toml::Value)| match &value {
        toml::Value::Array(list) => {
            let numbers = list.iter().map(number).collect::<Option<Vec<_>>>();
            numbers.map(|n| (key.clone(), n)).ok_or(format!("`{key}` is no list of numbers"))
        }
        single => {
            number(single).map(|n| (key.clone(), vec![n])).ok_or(format!("`{key}` is no number or list of numbers"))
        }
    };
    table.into_iter().map(pair).collect()
}

fn number(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::Integer(n) => Some(n.to_string()),
        toml::Value::Float(x) => Some(x.to_string()),
        _ => None,
    }
}

/// `3x8:9:6,58x10:12:8`
pub fn layer_spec(text: &str) -> Result<LayerSpec, String> {
    let mut layers = vec![];
    for part in text.split(',') {
        let (count, costs) = part.split_once('x').unwrap_or(("1", part));
        let count: usize =
            count.trim().parse().map_err(|_| format!("`{part}` is not written COUNTxF:I:W, as in 58x10:12:8"))?;
        let costs = costs.split(':').map(|c| c.trim().parse()).collect::<Result<Vec<Decimal>, _>>()?;
        let layer: [Decimal; 3] =
            costs.try_into().map_err(|_| format!("`{part}` does not have F, I and W: 58x10:12:8"))?;
        if count > MAX_LAYERS - layers.len() {
            return Err(format!("there are more than {MAX_LAYERS} layers"));
        }
        layers.extend(std::iter::repeat_n(layer, count));
    }
    if layers.is_empty() {
        return Err("there are no layers".to_string());
    }
    Ok(LayerSpec(layers))
}

/// A cost that `--p2p` or `--pair` may say, and `--costs` too.
fn one_of(name: &str, option: Option<Decimal>, listed: Option<Decimal>) -> Result<Option<Decimal>, ScheduleError> {
    match (option, listed) {
        (Some(option), Some(listed)) if option != listed => Err(ScheduleError::new(
            format!("--{name} is another number than `{name}` in --costs"),
            "leave one of them out",
        )),
        (option, listed) => Ok(option.or(listed)),
    }
}

/// All costs in ticks, as many digits behind the point as the finest has.
pub struct Prices {
    groups: [Vec<Ticks>; 3],
    layers: Option<Vec<LayerCosts>>,
    p2p: Ticks,
    pair: Option<Ticks>,
    decimals: u32,
}

impl Prices {
    /// From what was given; what `--p2p` or `--pair` says and `--costs` too is the same.
    pub fn new(
        costs: Option<&CostSpec>,
        layers: Option<&LayerSpec>,
        p2p: Option<Decimal>,
        pair: Option<Decimal>,
    ) -> Result<Prices, ScheduleError> {
        let one = || vec!["1".parse().expect("a number")];
        let groups = match costs {
            Some(spec) => [spec.forward.clone(), spec.input.clone(), spec.weight.clone()],
            None => [one(), one(), one()],
        };
        let p2p = one_of("p2p", p2p, costs.and_then(|c| c.p2p))?;
        let pair = one_of("pair", pair, costs.and_then(|c| c.pair))?;
        let layers = layers.map_or(&[][..], |l| &l.0);
        let all = groups.iter().flatten().chain(layers.iter().flatten()).chain(&p2p).chain(&pair);
        let decimals = all.map(|d| d.decimals()).max().unwrap_or(0);
        let ticks = |decimal: &Decimal| {
            decimal.ticks(decimals).ok_or_else(|| {
                ScheduleError::new(
                    "these costs are too large to be exact",
                    "use fewer digits, or a larger unit of time",
                )
            })
        };
        let layer = |[forward, input, weight]: &[Decimal; 3]| -> Result<LayerCosts, ScheduleError> {
            Ok(LayerCosts::halves(ticks(forward)?, ticks(input)?, ticks(weight)?))
        };
        let layers = layers.iter().map(layer).collect::<Result<Vec<_>, _>>()?;
        let [forward, input, weight] = groups;
        let group = |list: Vec<Decimal>| list.iter().map(ticks).collect::<Result<Vec<_>, _>>();
        Ok(Prices {
            groups: [group(forward)?, group(input)?, group(weight)?],
            layers: Some(layers).filter(|l| !l.is_empty()),
            p2p: p2p.as_ref().map_or(Ok(0), ticks)?,
            pair: pair.as_ref().map(ticks).transpose()?,
            decimals,
        })
    }

    /// The layers, when groups are to be made of them.
    pub fn layers(&self) -> Option<&[LayerCosts]> {
        self.layers.as_deref()
    }

    /// A tick is 10^−decimals of the unit that costs are written in.
    pub fn decimals(&self) -> u32 {
        self.decimals
    }

    /// The costs of a layout's groups.
    pub fn costs(&self, layout: Layout) -> Result<Costs, ScheduleError> {
        let groups = layout.groups() as usize;
        let spread = |(name, list): (&str, &Vec<Ticks>)| match list.len() {
            1 => Ok(vec![list[0]; groups]),
            n if n == groups => Ok(list.clone()),
            n => Err(ScheduleError::new(
                format!("{name} has {n} costs, and there are {groups} layer groups (stages × chunks)"),
                format!("give one cost for all, or {groups}"),
            )),
        };
        let [forward, input, weight] = &self.groups;
        let (forward, input, weight) = (spread(("F", forward))?, spread(("I", input))?, spread(("W", weight))?);
        Ok(self.with_links(Costs::halves(forward, input, weight)))
    }

    /// The same costs with those between stages and of pairs.
    pub fn with_links(&self, costs: Costs) -> Costs {
        costs.with_p2p(self.p2p).with_pair(self.pair).with_decimals(self.decimals)
    }
}
