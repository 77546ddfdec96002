//! What divides a number.

/// `1, 2, 4, 8`: found by the smaller of each two, since batches and vocabularies can be of billions.
pub fn divisors(of: u64) -> Vec<u64> {
    let small: Vec<u64> = (1..).take_while(|d| d * d <= of).filter(|d| of.is_multiple_of(*d)).collect();
    let large = small.iter().rev().map(|d| of / d).filter(|d| d * d > of);
    small.iter().copied().chain(large).collect()
}

/// Numbers for people.
pub fn listed(numbers: &[u64]) -> String {
    let all: Vec<String> = numbers.iter().map(u64::to_string).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_all_there_in_order() {
        assert_eq!([1, 7, 16].map(divisors), [vec![1], vec![1, 7], vec![1, 2, 4, 8, 16]]);
        assert_eq!(listed(&divisors(12)), "1, 2, 3, 4, 6, 12");
        assert!(divisors(u64::from(u32::MAX)).ends_with(&[1_431_655_765, 4_294_967_295]));
        assert_eq!(divisors(2_147_483_647), [1, 2_147_483_647]);
    }
}
