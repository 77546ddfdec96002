//! How the optimizer's state is kept, in the words of a row.

use crate::says::said_any;
use forebay_compiler::shard::{MasterWeights, Moments, Strategy};

/// What says that moments are kept in bf16: Megatron-Core's options for its precision-aware optimizer, and words.
const HALF_MOMENTS: [&str; 5] =
    ["exp_avg_dtype=bf16", "exp_avg_dtype bf16", "exp_avg_dtype: bf16", "moments in bf16", "optimizer states in bf16"];

/// MindSpeed's option by which masters are the halves that copies lack.
const SPLIT: [&str; 1] = ["reuse-fp32-param"];

/// The strategy with its optimizer's state as a row's text, in lower case, says. (Masters are not split where parameters are gathered for each use, or moments are in bf16.)
pub fn with_state(text: &str, strategy: Strategy) -> Strategy {
    let says = |words: &[&str]| said_any(text, words) == Some(true);
    let moments = if says(&HALF_MOMENTS) { Moments::Bf16 } else { strategy.moments };
    let splits = says(&SPLIT) && strategy.zero < 3 && moments == Moments::Full;
    let master_weights = if splits { MasterWeights::Split } else { strategy.master_weights };
    Strategy { moments, master_weights, ..strategy }
}

/// What was made of it at a level of ZeRO, for those who wrote the words.
pub(super) fn heard(text: &str, zero: u32) -> Vec<String> {
    let Strategy { moments, master_weights, .. } = with_state(text, Strategy { zero, ..Strategy::default() });
    let of_moments = (moments == Moments::Bf16).then(|| "moments = bf16".to_string());
    let of_masters = (master_weights == MasterWeights::Split).then(|| "master_weights = split".to_string());
    of_moments.into_iter().chain(of_masters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read() {
        let of = |text: &str, zero: u32| {
            let strategy = with_state(text, Strategy { zero, ..Strategy::default() });
            (strategy.moments, strategy.master_weights)
        };
        let (usual, half) = ((Moments::Full, MasterWeights::Whole), (Moments::Bf16, MasterWeights::Whole));
        assert_eq!(of("use_precision_aware_optimizer; exp_avg_dtype=bf16; exp_avg_sq_dtype=bf16", 1), half);
        assert_eq!(of("--exp-avg-dtype bf16", 1), half);
        assert_eq!(of("exp_avg_dtype=fp32, use-precision-aware-optimizer", 1), usual);
        assert_eq!(of("use-distributed-optimizer, reuse-fp32-param", 1), (Moments::Full, MasterWeights::Split));
        assert_eq!((of("reuse-fp32-param", 3), of("no reuse-fp32-param", 1)), (usual, usual));
        assert_eq!(of("reuse-fp32-param; moments in bf16", 1), half);
        assert_eq!(heard("exp_avg_dtype=bf16", 1), ["moments = bf16"]);
        assert_eq!(heard("reuse_fp32_param", 1), ["master_weights = split"]);
        assert_eq!(heard("reuse_fp32_param", 3), [""; 0]);
    }
}
