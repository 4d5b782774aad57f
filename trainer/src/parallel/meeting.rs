//! Meetings of ranks between two steps.
//!
//! Between two steps each rank says a word to all others. A rank that needs the whole state, for a
//! checkpoint or a hash, says [`Word::Gather`].

use lowtide_ranks::{Collectives, RanksError};

use crate::error::Result;

/// A word that a rank says to all ranks between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Continue,
    Stop,
    /// The rank needs the whole state. All ranks give their parts.
    Gather,
    /// The rank has finished training and needs nothing more.
    Leave,
}

/// Says `own` and returns the words of all ranks; without `ranks`, only `own`.
///
/// # Errors
/// `Ranks`.
pub(crate) fn say(ranks: Option<&dyn Collectives>, own: Word) -> Result<Vec<Word>> {
    const WORDS: [Word; 4] = [Word::Continue, Word::Stop, Word::Gather, Word::Leave];
    let Some(ranks) = ranks else { return Ok(vec![own]) };
    let said = ranks.exchange(&[own as u8])?;
    let word = |(rank, said): (usize, Vec<u8>)| {
        let word = WORDS.into_iter().find(|&word| said == [word as u8]);
        word.ok_or_else(|| {
            let reason = "it said no word of this version".to_owned();
            RanksError::Aborted { rank, reason }.into()
        })
    };
    said.into_iter().enumerate().map(word).collect()
}
