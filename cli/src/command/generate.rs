//! `lowtide generate`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use lowtide_data::{ChatTemplate, SpecialRole, Tokenizer, TokenizerError, TokenizerJson};
use lowtide_pretrained::{GenerateOptions, Sampling};
use lowtide_tensor::RandomKey;
use lowtide_trainer::{Result, TrainError};

use crate::command::capacity::Capacity;
use crate::command::trained::Trained;
use crate::command::{DeviceArgs, parse_count, parse_number, say, write_out};

#[derive(Args, Clone)]
pub(super) struct GenerateArgs {
    /// The folder of a run of a pretrained model, or of a model, or a model's name in the hub's
    /// local cache.
    model: PathBuf,
    /// The text to continue.
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// Treats the text as a user's message in a chat, and prints the answer.
    #[arg(long)]
    chat: bool,
    /// Largest number of new tokens.
    #[arg(long, value_name = "N", default_value_t = 128, allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_count(text, 1..=1 << 20))]
    tokens: u64,
    /// Randomness of the choice: 0 takes the most likely token, 1 uses the model's own
    /// probabilities.
    #[arg(long, value_name = "X", default_value = "0", allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_number(text, "0 or more, and finite", is_temperature))]
    temperature: f64,
    /// Chooses only among this number of the most likely tokens.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_count(text, 1..=1 << 30))]
    top_k: Option<u64>,
    /// Chooses only among the most likely tokens that have this share of the probability together;
    /// among all if absent.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_number(text, "above 0 and up to 1", is_top_p))]
    top_p: Option<f64>,
    /// Seed of the choices.
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_count(text, 0..=u64::MAX))]
    seed: u64,
    #[command(flatten)]
    device: DeviceArgs,
    /// Prints one JSON object instead of the text.
    #[arg(long)]
    pub(super) json: bool,
}

/// Bytes of the process for a token of the vocabulary while the next token is chosen: its logit,
/// its index and its weight.
const CHOICE_BYTES_PER_TOKEN: usize = 24;

fn is_temperature(number: f64) -> bool {
    (0.0..f64::INFINITY).contains(&number)
}

fn is_top_p(share: f64) -> bool {
    share > 0.0 && share <= 1.0
}

impl GenerateArgs {
    /// The choice of tokens.
    ///
    /// # Errors
    /// `Setting` for limits of a random choice if nothing is chosen at random.
    fn sampling(&self) -> Result<Sampling> {
        if self.temperature > 0.0 {
            return Ok(Sampling::Random {
                key: RandomKey::new(self.seed),
                temperature: self.temperature,
                // The number is at most 2^30.
                top_k: self.top_k.map(|count| count as usize),
                top_p: self.top_p.unwrap_or(1.0),
            });
        }
        let limits = [
            ("--top-k", self.top_k.is_some()),
            ("--top-p", self.top_p.is_some_and(|share| share < 1.0)),
        ];
        match limits.iter().find(|(_, is_given)| *is_given) {
            Some((place, _)) => {
                Err(setting(place, "limits a random choice, which takes a --temperature above 0"))
            }
            None => Ok(Sampling::Greedy),
        }
    }
}

pub(super) fn run(arguments: &GenerateArgs) -> Result<()> {
    let sampling = arguments.sampling()?;
    let device = arguments.device.open(arguments.device.process_budget())?;
    let config = Trained::config_of(&arguments.model)?;
    let path = config.folder().join("tokenizer.json");
    let tokenizer: Arc<dyn Tokenizer> = Arc::new(TokenizerJson::open(&path)?);
    let wrong = |error: TokenizerError| setting("--prompt", &error.to_string());
    let prompt = if arguments.chat {
        let template = ChatTemplate::of(&*tokenizer);
        let turns = [("user", arguments.prompt.as_str())];
        template.prompt(&*tokenizer, &turns).map_err(wrong)?.expect("every format has users")
    } else {
        let begin = tokenizer.special(SpecialRole::BeginOfText);
        let text = tokenizer.encode(&arguments.prompt).map_err(wrong)?;
        begin.into_iter().chain(text).collect()
    };
    if prompt.is_empty() {
        return Err(setting("--prompt", "has no tokens to go on from"));
    }
    let stops = stop_tokens(&*tokenizer);
    let options = GenerateOptions {
        len_max: arguments.tokens as usize,
        sampling,
        stop_tokens: stops.iter().map(|&token| i64::from(token)).collect(),
    };
    let tokens: Vec<i64> = prompt.iter().map(|&token| i64::from(token)).collect();
    // The tokenizer is in memory by now, and counts as a part of the process.
    Capacity::of_opened(&device, &arguments.device).admit(&device, None, |sim| {
        let mut trained = Trained::open(&arguments.model, sim)?;
        trained.model.rehearse_generation(sim, tokens.len(), options.len_max)?;
        let choice_bytes = config.shape().vocabulary * CHOICE_BYTES_PER_TOKEN;
        Ok(trained.encoding_bytes() + choice_bytes)
    })?;
    let Trained { model, .. } = Trained::open(&arguments.model, &device)?;
    let mut text = Stream { tokenizer: &*tokenizer, tokens: Vec::new(), written: String::new() };
    let mut outcome = Ok(());
    let found = model.generate_with(&device, &[tokens], &options, |_, token| {
        if options.stop_tokens.contains(&token) {
            return ControlFlow::Continue(());
        }
        // Tokens of a vocabulary fit u32.
        text.tokens.push(token as u32);
        let shown = if arguments.json { Ok(true) } else { text.write() };
        let goes_on = matches!(shown, Ok(true));
        outcome = shown.map(drop);
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    outcome?;
    if !arguments.json {
        return text.end();
    }
    let is_over = found[0].last().is_some_and(|last| options.stop_tokens.contains(last));
    let answer = serde_json::json!({
        "text": text.decoded()?,
        "tokens": text.tokens.len(),
        "prompt_tokens": prompt.len(),
        "ended": is_over,
    });
    say(&answer.to_string())
}

/// A text that is written while it is generated.
struct Stream<'a> {
    tokenizer: &'a dyn Tokenizer,
    tokens: Vec<u32>,
    written: String,
}

impl Stream<'_> {
    fn decoded(&self) -> Result<String> {
        self.tokenizer.decode(&self.tokens).map_err(|error| setting("model", &error.to_string()))
    }

    /// Writes the text that can no longer change. Incomplete characters, and blanks that a
    /// tokenizer may take back, are held back. Returns false if the reader has gone.
    fn write(&mut self) -> Result<bool> {
        let text = self.decoded()?;
        let certain = text.trim_end_matches([char::REPLACEMENT_CHARACTER, ' ']);
        match certain.strip_prefix(self.written.as_str()) {
            None | Some("") => Ok(true),
            Some(rest) => {
                let is_read = write_out(rest)?;
                self.written = certain.to_owned();
                Ok(is_read)
            }
        }
    }

    /// Writes the rest of the text and a line break.
    fn end(&self) -> Result<()> {
        let text = self.decoded()?;
        match text.strip_prefix(self.written.as_str()) {
            Some(rest) => say(rest),
            // The tokenizer decodes the whole text differently.
            None => say(&format!("\n{text}")),
        }
    }
}

/// The tokens that end a text or an answer in a chat.
fn stop_tokens(tokenizer: &dyn Tokenizer) -> Vec<u32> {
    const NAMES: [&str; 3] = ["<|im_end|>", "<|eot_id|>", "<end_of_turn>"];
    let ends = NAMES.iter().filter_map(|name| tokenizer.special_named(name));
    ends.chain(tokenizer.special(SpecialRole::EndOfText)).collect()
}

fn setting(place: &str, problem: &str) -> TrainError {
    TrainError::Setting { place: place.to_owned(), problem: problem.to_owned() }
}
