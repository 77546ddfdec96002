//! What time is spent on.

use serde::Serialize;

/// What an instruction is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Matrix products.
    Products,
    /// Products in ragged groups: experts.
    ExpertProducts,
    /// Attention.
    Attention,
    /// Everything that streams through memory: norms, activations, sorting, look-ups.
    Vector,
    /// The optimizer's update.
    Optimizer,
    /// Rows to experts and back.
    Ep,
    /// Collectives of tensor (and sequence) parallel ranks.
    Tp,
    /// Collectives of context parallel ranks.
    Cp,
    /// Messages between pipeline stages.
    Pp,
    /// Gradients and parameters over data-parallel ranks.
    Dp,
    /// Saved tensors to the host's memory and back.
    Swap,
}

impl Kind {
    /// How many there are.
    pub const COUNT: usize = 11;

    /// All of them, by number.
    pub const ALL: [Kind; Kind::COUNT] = [
        Kind::Products,
        Kind::ExpertProducts,
        Kind::Attention,
        Kind::Vector,
        Kind::Optimizer,
        Kind::Ep,
        Kind::Tp,
        Kind::Cp,
        Kind::Pp,
        Kind::Dp,
        Kind::Swap,
    ];

    /// Its number, below [`Kind::COUNT`].
    pub fn number(self) -> usize {
        self as usize
    }

    /// Is it communication?
    pub fn is_communication(self) -> bool {
        matches!(self, Kind::Ep | Kind::Tp | Kind::Cp | Kind::Pp | Kind::Dp)
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Products => "matrix products",
            Kind::ExpertProducts => "experts' products",
            Kind::Attention => "attention",
            Kind::Vector => "norms, activations, sorting",
            Kind::Optimizer => "optimizer",
            Kind::Ep => "expert communication (ep)",
            Kind::Tp => "tensor communication (tp)",
            Kind::Cp => "context communication (cp)",
            Kind::Pp => "pipeline messages (pp)",
            Kind::Dp => "gradients and parameters (dp)",
            Kind::Swap => "copies to the host and back",
        }
    }
}

/// Seconds of each kind.
pub type ByKind = [f64; Kind::COUNT];
