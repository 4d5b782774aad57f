//! Meetings of ranks between two steps.
//!
//! A rank that needs the whole state, for a checkpoint or a hash, asks for it: the others hear of
//! that where they meet.

use lowtide_ranks::Collectives;

use crate::error::Result;

/// The word that a rank says where all of them meet between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Continue,
    Stop,
    /// The rank needs the whole state, for which all ranks give their parts.
    Gather,
    /// The rank has trained, and needs nothing more.
    Leave,
}

/// The words of all ranks; without `ranks`, the own word.
///
/// # Errors
/// `Ranks`.
pub(crate) fn say(ranks: Option<&dyn Collectives>, own: Word) -> Result<Vec<Word>> {
    const WORDS: [Word; 4] = [Word::Continue, Word::Stop, Word::Gather, Word::Leave];
    let Some(ranks) = ranks else { return Ok(vec![own]) };
    let said = ranks.exchange(&[own as u8])?;
    let word = |said: Vec<u8>| WORDS.into_iter().find(|&word| said == [word as u8]);
    Ok(said.into_iter().map(|said| word(said).expect("one of the words")).collect())
}
