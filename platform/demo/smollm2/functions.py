"""Made-up functions, and what a user says who needs one of them.

A drawn function has its own names for itself and its arguments, so that a model can only learn to
read the declaration, not to remember it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any

from demo.smollm2.values import MESSAGES, WORDS, Json, kind_of, spoken

Schema = dict[str, Any]
SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class MadeUpAction:
    """What a function does. `arguments` are the names that each slot may get; `requests` hold slots
    in braces; `reply` is what to say of a result such as `result`, whose values are kinds."""

    names: tuple[str, ...]
    description: str
    arguments: dict[str, tuple[str, ...]]
    requests: tuple[str, ...]
    result: dict[str, str]
    reply: str


def action(
    names: str, description: str, requests: str, reply: str = "", result: str = "", **slots: str
) -> MadeUpAction:
    pairs = dict(pair.split(":") for pair in result.split())
    arguments = {slot: tuple(names.split()) for slot, names in slots.items()}
    return MadeUpAction(
        tuple(names.split()), description, arguments, tuple(requests.split("|")), pairs, reply
    )


ACTIONS = (
    action("get_weather current_weather weather_now get_current_weather", "Get the current weather for a city.",
           "What is the weather in {city}?|What's the weather like in {city}?|How is the weather in {city} today?|Is it raining in {city}?|How warm is it in {city} in {unit}?|weather in {city}",
           "It is {degrees} degrees in {city}.", "degrees:degrees", city="city location place", unit="unit units"),
    action("get_time current_time clock time_in", "Get the time of day in a city.",
           "What time is it in {city}?|Tell me the time in {city}.|How late is it in {city}?",
           "It is {time} in {city}.", "time:time", city="city location timezone_city"),
    action("send_email mail_send compose_mail", "Send an e-mail.",
           "Send an e-mail to {email} saying {message}.|Mail {email} that {message}.|Write to {email}: {message}",
           "The e-mail to {email} was sent.", email="to recipient address", message="body text content"),
    action("send_message text_person notify_user post_message", "Send a short message to a person.",
           "Send {person} a message: {message}.|Tell {person} that {message}.|Let {person} know that {message}.",
           "I told {person}.", person="to user name recipient", message="text message content"),
    action("set_alarm alarm wake_up_at", "Set an alarm.",
           "Set an alarm for {time}.|Wake me up at {time}.|I need an alarm at {time}.", "The alarm is set for {time}.", time="time at when"),
    action("start_timer timer countdown", "Start a timer.",
           "Start a timer of {minutes} minutes.|Set a timer for {minutes} minutes.|Count down {minutes} minutes.",
           "The timer runs for {minutes} minutes.", minutes="minutes duration length_minutes"),
    action("add_reminder create_reminder remind_me", "Create a reminder for a date.",
           "Remind me of the {title} on {date}.|Add a reminder for the {title} on {date}.|Don't let me forget the {title} on {date}.",
           "I will remind you of the {title}.", title="text subject what", date="date day due"),
    action("convert_currency exchange currency_convert", "Convert an amount of money to another currency.",
           "Convert {amount} {currency} to {target}.|How much is {amount} {currency} in {target}?|What are {amount} {currency} in {target}?",
           "{amount} {currency} are {id} {target}.", "id:id", amount="amount value sum", currency="from source from_currency", target="to target to_currency"),
    action("add_numbers add sum_of", "Add two numbers.", "What is {a} plus {b}?|Add {a} and {b}.|{a} + {b}", "The sum is {id}.", "id:id", a="a x first", b="b y second"),
    action("multiply multiply_numbers product", "Multiply two numbers.", "What is {a} times {b}?|Multiply {a} by {b}.|Calculate {a} * {b}.", "The product is {id}.", "id:id", a="a x left", b="b y right"),
    action("translate translate_text translator", "Translate a text into another language.",
           "Translate \"{message}\" into {language}.|How do you say \"{message}\" in {language}?|Put \"{message}\" into {language}.", message="text input phrase", language="language target_language to"),
    action("play_song play_music start_playback", "Play a song.", "Play {song}.|Put on {song}.|I want to hear {song}.", "Playing {song}.", song="title song track"),
    action("set_volume volume change_volume", "Set the volume of the speaker.", "Set the volume to {percent} percent.|Volume to {percent}.|Make the volume {percent} percent.", "The volume is {percent} percent.", percent="level volume percent"),
    action("set_thermostat set_temperature heating", "Set the temperature of a room.",
           "Set the {room} to {degrees} degrees.|Heat the {room} to {degrees} degrees.|Make it {degrees} degrees in the {room}.", "The {room} is set to {degrees} degrees.", room="room zone where", degrees="temperature degrees target"),
    action("switch_light light_control lights", "Switch the light of a room on or off.",
           "Turn {state} the light in the {room}.|Switch the {room} light {state}.|Lights {state} in the {room}, please.", "The light in the {room} is {state}.", room="room location area", state="state switch value"),
    action("set_light_color paint_light lamp_color", "Change the colour of the light in a room.",
           "Make the {room} light {color}.|Change the light in the {room} to {color}.", "The light in the {room} is {color}.", room="room where", color="color colour"),
    action("book_hotel reserve_hotel hotel_booking", "Book a hotel room.",
           "Book a hotel in {city} from {date} for {count} nights.|I need a hotel in {city} on {date} for {count} nights.|Reserve a hotel in {city} for {count} nights, arriving {date}.",
           "Your hotel in {city} is booked.", city="city location", date="check_in arrival date", count="nights duration"),
    action("book_flight find_flight search_flights", "Search flights between two cities on a date.",
           "Book a flight from {city} to {city2} on {date}.|Find flights from {city} to {city2} on {date}.|I want to fly from {city} to {city2} on {date}.",
           "The best flight is {code}.", "code:code", city="origin from departure", city2="destination to arrival", date="date day"),
    action("book_table reserve_table restaurant_booking", "Reserve a table in a restaurant.",
           "Book a table for {count} people at {time}.|Reserve a table for {count} at {time}.|We are {count} people, get us a table at {time}.", "Your table is booked for {time}.", count="people guests party_size", time="time at"),
    action("track_package track_parcel shipment_status", "Track a parcel.",
           "Where is my parcel {code}?|Track the package {code}.|When will {code} arrive?", "The parcel {code} is in {place}.", "place:city", code="tracking_number parcel_id code"),
    action("get_stock_price stock_price quote", "Get the price of a stock.", "What is the price of {company}?|How much is {company} stock?|Stock price of {company}?", "{company} is at {amount}.", "amount:amount", company="symbol ticker stock"),
    action("search_web web_search find_online", "Search the web.", "Search the web for {topic}.|Look up {topic} online.|Find pages about {topic}.", topic="query q search_term"),
    action("get_news news_headlines latest_news", "Get the latest news about a topic.", "What is new about {topic}?|Give me news on {topic}.|Latest news about {topic}?|{count} headlines about {topic}, please.", topic="topic subject query", count="limit count max_results"),
    action("open_page fetch_url open_url", "Open a page of the web.", "Open {url}.|Show me the page {url}.|Fetch {url}.", url="url address link"),
    action("find_recipe recipe_search", "Find recipes by their ingredients.", "What can I cook with {things}?|Find a recipe with {things}.", things="ingredients items"),
    action("add_to_cart cart_add buy", "Put items into the shopping cart.", "Put {count} {thing} into my cart.|Add {count} {thing} to the cart.|I want to buy {count} {thing}.", "I put {count} {thing} into your cart.", thing="product item article", count="quantity count amount"),
    action("add_to_list shopping_list_add list_items", "Add items to the shopping list.", "Add {things} to my shopping list.|We need {things}.|Put {things} on the list.", "{things} are on the list.", things="items things entries"),
    action("invite_people add_guests invite", "Invite people to an event.", "Invite {people} to the {title}.|Ask {people} to come to the {title}.", "I invited {people}.", people="people guests attendees", title="event title"),
    action("schedule_meeting create_event plan_meeting", "Put a meeting into the calendar.",
           "Schedule a meeting about the {title} on {date} at {time}.|Plan the {title} meeting for {date}, {time}.|Put a meeting on {date} at {time} into my calendar: {title}.",
           "The meeting is on {date} at {time}.", title="title subject topic", date="date day", time="time start start_time"),
    action("transfer_money send_money pay", "Transfer money to a person.", "Send {amount} {currency} to {person}.|Pay {person} {amount} {currency}.|Transfer {amount} {currency} to {person}.", "{person} gets {amount} {currency}.", person="to recipient payee", amount="amount value", currency="currency unit"),
    action("get_balance account_balance check_balance", "Get the balance of an account.", "What is the balance of account {id}?|How much money is in account {id}?", "There are {amount} in account {id}.", "amount:amount", id="account account_id number"),
    action("population_of get_population", "Get the number of people who live in a country.", "How many people live in {country}?|What is the population of {country}?", "{id} people live in {country}.", "id:id", country="country nation name"),
    action("distance_between get_distance route_length", "Get the distance between two cities in kilometres.", "How far is it from {city} to {city2}?|What is the distance between {city} and {city2}?", "It is {id} kilometres.", "id:id", city="from start city_a", city2="to end city_b"),
    action("generate_report make_report export_report", "Make a report as a file.", "Make a {format} report of the {title}.|Export the {title} as {format}.|I need the {title} as {format}.", title="subject name report", format="format type file_type"),
    action("order_food order_pizza food_order", "Order a pizza.", "Order a {size} pizza for {person}.|Get {person} a {size} pizza.", "A {size} pizza is on its way.", size="size", person="customer name for"),
    action("random_number roll_dice draw_number", "Draw a random number.", "Draw a number between {a} and {b}.|Give me a random number from {a} to {b}.", "The number is {id}.", "id:id", a="min low start", b="max high end"),
    action("get_joke tell_joke", "Get a joke.", "Tell me a joke.|I need a joke.|Make me laugh."),
    action("list_users get_users all_users", "List all users.", "List all users.|Who are our users?|Show me every user.", "The users are {people}.", "people:people"),
    action("lock_door close_door", "Lock the front door.", "Lock the door.|Please lock the front door.|Is the door locked? Lock it.", "The door is locked."),
    action("get_sunrise sunrise sun_times", "When the sun rises in a city on a date.", "When does the sun rise in {city} on {date}?|When is sunrise in {city} on {date}?|Sunrise in {city}, {date}?", "The sun rises at {time}.", "time:time", city="city place location", date="date day"),
    action("find_synonym synonyms thesaurus", "Find other words for a word.", "What is another word for {word}?|Find a synonym of {word}.|Other words for \"{word}\"?", word="word term"),
    action("spell_check check_spelling", "Check how a word is spelled.", "How do you spell {word}?|Is \"{word}\" spelled right?|Check the spelling of {word}.", word="word text"),
    action("rhymes find_rhymes", "Find words that rhyme.", "What rhymes with {word}?|Give me {count} rhymes for \"{word}\".|Find rhymes for {word}.", word="word to", count="limit count max"),
    action("holiday_date get_holiday find_holiday", "The date of a holiday in a year.", "When is {holiday} in {year}?|On which day is {holiday} {year}?|What date is {holiday} in {year}?", "It is on {date}.", "date:date", holiday="holiday name day", year="year in_year"),
    action("phone_book find_phone_number contact_number", "Find the phone number of a person.", "What is the phone number of {person}?|How can I reach {person} by phone?|Find the number of {person}.", person="name person who"),
    action("get_birthday birthday_of", "When a person has birthday.", "When is the birthday of {person}?|When was {person} born?|Which day is {person}'s birthday?", "It is on {date}.", "date:date", person="name person user"),
    action("flight_status check_flight", "The status of a flight.", "Is flight {code} on time?|Does flight {code} leave on time?|When does flight {code} land?", "Flight {code} lands at {time}.", "time:time", code="flight flight_number number"),
    action("next_bus bus_times bus_departures", "The next buses at a stop.", "When does the next bus leave from {place}?|Which buses go from {place}?|The next {count} buses at {place}, please.", "A bus leaves at {time}.", "time:time", place="stop station from", count="limit count results"),
    action("museum_hours museum_times", "When a museum is open.", "When does the {museum} close?|Is the {museum} open on {date}?|Till when is the {museum} open?", "It closes at {time}.", "time:time", museum="museum name", date="date day"),
    action("count_calories calories nutrition", "The calories of a food.", "How many calories are in {count} {thing}?|How many calories do {count} {thing} have?|Calories of {count} {thing}?", "They have {id} calories.", "id:id", thing="food item", count="amount count portions"),
    action("find_shop nearest_shop shop_finder", "Find a shop that sells something.", "Where can I buy {thing} in {city}?|Who sells {thing} in {city}?|I need a shop in {city} with {thing}.", thing="product item", city="city near place"),
    action("find_lawyer lawyer_search find_expert", "Find an expert of a profession.", "I need a {profession} in {city}.|Find me a {profession} in {city}.|Which {profession} in {city} is good?", profession="profession kind job", city="city location"),
    action("rent_car hire_car car_rental", "Rent a car for some days.", "I want to rent a car at {place} for {count} days.|Rent me a car for {count} days at {place}.|We need a car for {count} days from {place}.", "The car waits at {place}.", place="place pickup station", count="days duration"),
    action("borrow_film rent_film film_rental", "Rent a film.", "Rent the film {film}.|I want to see the film {film}.|Get me {film} by {person} for tonight.", "Enjoy {film}.", film="title film movie", person="director made_by"),
    action("log_weight record_weight weight_log", "Record the weight of a person.", "My weight is {kilos} kg, please record it.|Write down that I weigh {kilos} kilos.|I weigh {kilos} kg today.", "{kilos} kg are recorded.", kilos="kg weight kilograms"),
    action("log_run record_run add_run", "Record a run.", "I ran {count} kilometres in {minutes} minutes.|Record a run of {count} km in {minutes} minutes.|Log my run: {count} km, {minutes} minutes.", "Well done.", count="distance_km kilometres distance", minutes="minutes duration time_minutes"),
    action("area area_of rectangle_area", "The area of a rectangle.", "How large is a room of {a} by {b} metres?|What is the area of {a} by {b}?|Area of a field {a} m wide and {b} m long?", "It is {id}.", "id:id", a="width width_m", b="length length_m"),
    action("draw_winners pick_winners draw_names", "Draw winners among numbers.", "Draw a winner among {numbers}.|Pick one of {numbers}.|Who wins of the numbers {numbers}?", "The winner is {id}.", "id:id", numbers="numbers tickets entries"),
    action("average mean_of get_average", "The mean of numbers.", "What is the average of {numbers}?|Compute the mean of {numbers}.|Average {numbers}.", "The mean is {id}.", "id:id", numbers="numbers values data"),
    action("heat_sauna set_water_heater boiler", "Heat the sauna.", "Heat the sauna to {percent} degrees.|Sauna to {percent} degrees, program {wash}, please|Make the sauna {percent} degrees hot.", "The sauna gets {percent} degrees.", percent="celsius temperature degrees", wash="program mode"),
    action("start_washing wash run_washer", "Start the washing machine.", "Wash the {thing}.|Wash at {degrees} degrees.|Start the {wash} program.|Wash with the {wash} program at {degrees} degrees.", "The washing machine runs.", thing="load what", degrees="celsius temperature", wash="program mode"),
    action("crop_image cut_image trim_picture", "Cut a part out of an image.", "Cut {image} to {a} by {b}.|Crop the image {image} to {a} x {b} pixels.|Make {image} {a} wide and {b} high.", "{image} is cut.", image="file path image", a="width w", b="height h"),
    action("rotate_image turn_image", "Turn an image.", "Turn {image} by {percent} degrees.|Rotate the picture {image} {percent} degrees.|Rotate {image}.", "{image} is turned.", image="file picture image", percent="angle degrees"),
    action("copy_folder backup_folder sync_folder", "Copy a folder to the backup.", "Back up the folder {word}.|Copy the folder {word} to the backup.|Save my folder {word}.", "The folder is safe.", word="folder directory source"),
    action("encrypt_file lock_file protect_file", "Encrypt a file.", "Encrypt {path}.|Protect the file {path} with {priority} strength.|Make {path} unreadable for others.", "{path} is encrypted.", path="file path", priority="strength level"),
    action("open_valve irrigate sprinkler", "Let water flow in a part of the house.", "Let {count} litres flow in section {letter}.|Give section {letter} {count} litres.|Open the valve of section {letter}.|Water in the {room}, please.", "The water flows.", letter="section part", room="room area", count="litres amount"),
    action("seat_map pick_seat choose_seat", "Choose a seat in a row.", "I want seat {count} in row {letter}.|Row {letter}, seat {count}, please.|Give me a seat in row {letter}.", "The seat is yours.", letter="row line", count="seat number"),
    action("school_grade enter_grade add_grade", "Enter a grade of a pupil.", "{person} gets a {letter} in {subject}.|Enter grade {letter} in {subject} for {person}.|{person} wrote a {letter} in {subject}.", "The grade is entered.", person="pupil student name", letter="grade mark", subject="subject course"),
    action("give_points add_points reward", "Give points to a player.", "Give {person} {count} points.|{person} gets {count} points.|Reward {person} with {count} points.", "{person} has {count} points more.", person="player user name", count="points amount"),
    action("walk_dog_log dog_walk pet_log", "Record a walk with the dog.", "Walked the dog for {minutes} minutes.|The dog was out for {minutes} minutes.|Log {minutes} minutes with the dog.", "The walk is recorded.", minutes="minutes duration"),
    action("country_of_code dialing_code find_dialing_code", "The country of a dialing code.", "Which country has the dialing code {digits}?|Where is {digits} from?|Whose dialing code is {digits}?", "It is {country}.", "country:country", digits="code prefix dialing_code"),
    action("plate_owner license_plate find_car", "Find a car by its licence plate.", "Whose car has the plate {code}?|Which car has the number plate {code}?|Find the car {code}.", "It belongs to {person}.", "person:person", code="plate license number"),
    action("star_sign horoscope get_horoscope", "The star sign of a date.", "What is the star sign of {date}?|Which star sign has somebody born on {date}?|Horoscope for {date}, please.", date="date born day"),
    action("order_book buy_book book_order", "Order a book in the shop.", "Order the book {film}.|Order me the book {film} by {person}.|I want to have the book {film}.", "The book {film} is ordered.", film="title book name", person="author writer"),
    action("now get_date today", "Get today's date.", "What day is it today?|What is today's date?|Which date is it?", "Today is {date}.", "date:date"),
)  # fmt: skip

NOUNS = (
    "ticket invoice order contact note task booking playlist customer product project repository channel ticket "
    "server backup coupon shipment subscription document album course lesson recipe room vehicle device sensor "
    "campaign survey report contract employee job member group policy webhook key deployment pipeline issue branch"
).split()  # fmt: skip


def about_noun(noun: str) -> tuple[MadeUpAction, ...]:
    """What one does with records of a kind."""
    key = f"{noun}_id id {noun}Id {noun}"
    return (
        action(f"create_{noun} new_{noun} add_{noun} {noun}_create", f"Create a {noun}.",
               f"Create a {noun} called \"{{title}}\".|Make a new {noun}: {{title}}.|Create a {noun} named {{title}} with {{priority}} priority.",
               f"The {noun} {{id}} was created.", "id:id", title="title name label", priority="priority level"),
        action(f"get_{noun} read_{noun} {noun}_details show_{noun}", f"Get a {noun} by its id.",
               f"Show me {noun} {{id}}.|What is in {noun} {{id}}?|Get the {noun} with the id {{id}}.",
               f"The {noun} is called {{title}}.", "title:title", id=key),
        action(f"delete_{noun} remove_{noun} {noun}_delete", f"Delete a {noun}.",
               f"Delete {noun} {{code}}.|Remove the {noun} {{code}}.|The {noun} {{code}} is not needed any more, delete it.",
               f"The {noun} {{code}} is deleted.", code=key),
        action(f"list_{noun}s find_{noun}s search_{noun}s query_{noun}s", f"List {noun}s, all of them or those of a status.",
               f"List all {noun}s.|Which {noun}s are {{status}}?|Show me the {{status}} {noun}s.|Give me the {{count}} latest {noun}s.",
               f"There are {{id}} {noun}s.", "id:id", status="status state filter", count="limit count"),
        action(f"update_{noun} set_{noun}_status change_{noun}", f"Change the status of a {noun}.",
               f"Set {noun} {{id}} to {{status}}.|Mark the {noun} {{id}} as {{status}}.|{noun} {{id}} is {{status}} now, update it.",
               f"The {noun} {{id}} is {{status}}.", id=key, status="status state new_status"),
        action(f"assign_{noun} give_{noun} {noun}_owner", f"Give a {noun} to a person.",
               f"Assign {noun} {{id}} to {{person}}.|{{person}} should take care of {noun} {{id}}.|Give {noun} {{id}} to {{person}}.",
               f"{{person}} has the {noun} {{id}} now.", id=key, person="assignee user owner"),
    )  # fmt: skip


DEVICES = (
    "dishwasher|air conditioner|coffee machine|fireplace|sprinkler|alarm system|front gate|window blinds|pool cover|radio|"
    "fan|television|lawn mower|skylight|elevator|barn door|projector|toaster|hot tub|roof window"
).split("|")  # fmt: skip


def about_device(device: str) -> tuple[MadeUpAction, ...]:
    """What one does with a device: functions without arguments, told apart only by their names."""
    key = device.replace(" ", "_")
    return tuple(
        action(f"{key}_{verb} {verb}_{key} {verb}_the_{key}", f"{label} the {device}.",
               f"{label} the {device}.|{label} the {device}, please.|The {device} should be {state} now.",
               f"The {device} is {state}.")
        for verb, label, state in (("start", "Start", "on"), ("stop", "Stop", "off"), ("open", "Open", "open"), ("close", "Close", "closed"))
    )  # fmt: skip


RUN = action(
    "exec_command Bash bash shell run_shell terminal run_command execute run_terminal_cmd", "Run a command in a shell and return its output.", "",
    command="command cmd script command_line",
)  # fmt: skip
COMMANDS = (
    ("ls", "Which files are in this folder?|List the files in this folder.|What files are here?|List the files.|Show me the files in the current directory.|ls"),
    ("ls -la", "List all files, hidden ones too.|Show hidden files as well."),
    ("pwd", "Which folder is this?|What is the current directory?|Where are we?|Print the working directory."),
    ("cat {path}", "Show me {path}.|What is in {path}?|Print the content of {path}.|Read {path}."),
    ("head -n {count} {path}", "Show the first {count} lines of {path}.|Print the top {count} lines of {path}."),
    ("tail -n {count} {path}", "Show the last {count} lines of {path}."),
    ("wc -l {path}", "How many lines does {path} have?|Count the lines of {path}."),
    ("ls {folder}", "Which files are in {folder}?|List the files in {folder}.|What is in the folder {folder}?"),
    ("grep -rn {thing} {folder}", "Find {thing} in {folder}.|Search for {thing} in the folder {folder}."),
    ("mkdir {thing}", "Make a folder called {thing}.|Create the directory {thing}."),
    ("rm {path}", "Delete the file {path}.|Remove {path}."),
    ("python {path}", "Run {path} with Python.|Execute the Python script {path}."),
    ("pytest", "Run the tests.|Are the tests green?"),
    ("git status", "What has changed in the repository?|Show the git status.|Is anything uncommitted?"),
    ("git log -n {count}", "Show the last {count} commits.|What were the last {count} commits?"),
    ("git diff", "Show me the diff.|What did I change?"),
    ("df -h", "How much disk space is left?|Is the disk full?"),
    ("date", "What time is it on this machine?|Print the date of the machine."),
    ("whoami", "Which user am I?|Who am I logged in as?"),
    ("make {thing}", "Run make {thing}.|Build the target {thing}."),
    ("echo {thing}", "Echo {thing}.|Print the word {thing}.|Run echo {thing}."),
    ("uname -a", "Which kernel is this?|What system is this machine?"),
)  # fmt: skip
"""Commands of a shell and what a user says who wants them."""

FILE_ACTIONS = (
    action("read_file Read view_file open_file cat_file", "Read a file and return its content.", "Show me {path}.|What is in {path}?|Read {path}.|Open {path}.", path="file_path path file filename"),
    action("write_file Write create_file save_file", "Write a text to a file.", "Write \"{message}\" to {path}.|Create {path} with the content \"{message}\".|Save \"{message}\" as {path}.", "I wrote {path}.", path="file_path path file", message="content text contents"),
    action("delete_file remove_file", "Delete a file.", "Delete the file {path}.|Remove {path}.", "{path} is deleted.", path="file_path path file"),
    action("list_files list_directory LS list_dir", "List the files of a folder.", "Which files are in {folder}?|List the files in {folder}.|What is in the folder {folder}?", folder="path folder directory"),
    action("grep_files Grep search_files find_in_files", "Search files for a text.", "Find {thing} in {folder}.|Search for {thing} in the folder {folder}.", thing="pattern query text", folder="path folder directory"),
)  # fmt: skip

AGENT_ACTIONS = (
    action("view_image open_image show_image", "View an image file of this machine.", "Show me the image {image}.|Look at the picture {image}.", image="path file image_path"),
    action("apply_patch edit_file Edit replace_in_file", "Change a text in a file.", "Replace {word} by \"{message}\" in {path}.|In {path} change {word} to \"{message}\".", path="file_path path file", word="old_string old search", message="new_string new replacement"),
    action("update_plan TodoWrite write_plan", "Update the plan of the task.", "Plan the {title}.|Put the {title} on the plan.", title="plan explanation todos"),
    action("request_user_input AskUserQuestion ask_user", "Ask the user a question.", "Ask me about the {title}.|I want to be asked about the {title}.", title="question prompt"),
    action("spawn_agent Task start_agent", "Start another agent for a task.", "Let another agent do the {title}.|Start an agent for the {title}.", title="task prompt message"),
    action("wait_agent BashOutput wait_for", "Wait for an agent or a command that runs.", "Wait for {code}.|Is {code} done?", code="id session_id bash_id"),
    action("close_agent KillShell end_command", "End an agent or a command that runs.", "End {code}.|Kill {code}.", code="id session_id shell_id"),
    action("write_stdin send_input type_text", "Send a text to a command that runs.", "Send \"{message}\" to {code}.|Type \"{message}\" into {code}.", code="session_id id", message="chars text input"),
    action("web_search WebSearch search_online", "Search the web.", "Search the web for {topic}.|Look {topic} up online.", topic="query q"),
    action("read_url WebFetch fetch", "Fetch a page of the web and answer a question about it.", "What does {url} say?|Fetch {url}.", url="url address"),
    action("schedule_prompt CronCreate add_schedule", "Schedule a request for a time.", "At {time} ask yourself about the {title}.|Every day at {time} check the {title}.", time="cron schedule time", title="prompt task"),
    action("delete_schedule CronDelete unschedule", "Cancel what is scheduled.", "Cancel the schedule {code}.|Do not run {code} any more.", code="id schedule_id"),
    action("list_schedules CronList get_schedules", "List what is scheduled.", "What is scheduled?|List the schedules."),
    action("create_task TaskCreate add_task", "Add a task to the list of tasks.", "Add the task {title}.|Put {title} on the list of tasks.", title="subject title name"),
    action("get_task TaskGet show_task", "Get a task of the list by its id.", "Show me task {code}.|What is task {code}?", code="task_id taskId id"),
    action("update_task TaskUpdate set_task", "Change a task of the list.", "Set task {code} to {status}.|Task {code} is {status} now.", code="task_id taskId id", status="status state"),
    action("list_tasks TaskList get_tasks", "List the tasks of this conversation.", "Which tasks are left?|List the tasks."),
    action("task_output TaskOutput get_output", "Get the output of a task that runs.", "What did task {code} print?|Show me the output of task {code}.", code="task_id id"),
    action("use_skill Skill load_skill", "Load a skill and follow it.", "Use the skill {word}.|/{word}", word="skill name"),
    action("send_message SendMessage message_agent", "Send a message to another agent.", "Tell the agent {person}: \"{message}\".|Send \"{message}\" to the agent {person}.", person="to agent recipient", message="message text"),
    action("enter_worktree EnterWorktree open_worktree", "Work in a worktree of the repository.", "Work in the worktree {word}.|Open a worktree called {word}.", word="name worktree"),
    action("exit_worktree ExitWorktree leave_worktree", "Leave the worktree.", "Leave the worktree.|Back from the worktree."),
    action("edit_notebook NotebookEdit change_cell", "Change a cell of a notebook.", "Replace cell {count} of {path} by \"{message}\".", count="cell cell_number", path="notebook_path path file", message="new_source source content"),
    action("run_workflow Workflow start_workflow", "Run a workflow of several agents.", "Run the workflow {word}.|Start the workflow {word}.", word="name workflow script"),
    action("report_findings ReportFindings add_findings", "Report what a review found.", "Report these findings: {things}.", things="findings items"),
)  # fmt: skip
"""What coding agents declare beside a shell."""

FAMILIES = (*map(about_noun, sorted(set(NOUNS))), *map(about_device, DEVICES))
"""Functions about the same thing."""
GENERAL = (*ACTIONS, *ACTIONS, *(one for family in FAMILIES for one in family))

EXTRA: dict[str, tuple[Schema, str]] = {
    "timeout_ms": ({"type": "number"}, "Longest wait in milliseconds. Defaults to 10000."),
    "verbose": ({"type": "boolean"}, "Return more detail."),
    "dry_run": ({"type": "boolean"}, "Only check what would happen."),
    "description": ({"type": "string"}, "What this call does, in a few words. Optional."),
    "workdir": ({"type": "string"}, "Working directory. Defaults to the current one."),
    "priority_hint": ({"type": "string", "enum": ["default", "urgent"]}, "Hint for the queue; omit if unsure."),
    "max_output": ({"type": "integer", "minimum": 1}, "Bound of the output. Defaults to 10000."),
    "page": ({"type": "integer"}, "Page of the results, from 1."),
    "tags": ({"type": "array", "items": {"type": "string"}}, "Tags to attach. Leave out for none."),
    "background": ({"type": "boolean"}, "Return at once and run in the background."),
    "locale": ({"type": "string"}, "Locale of the answer. Omit to inherit the user's."),
    "justification": ({"type": "string"}, "Question to the user if approval is needed; omit otherwise."),
}  # fmt: skip
"""Optional arguments that nobody asks for."""
UNASKED = (
    "city person date time title message count percent minutes amount currency language room topic priority status "
    "unit size color format letter word place profession film digits"
).split()  # fmt: skip
"""Kinds of arguments that nobody asks for where they are declared beside an action's own: what a
user does not say is left out."""

ADVICE = (
    "Use it only when the user asks for it.", "Prefer it to guessing.", "It returns its result as text.",
    "Do not call it twice for the same thing.", "Fails if the arguments are not valid.",
    "The result may be cut if it is long.", "It needs no confirmation.", "Values are taken as they are.",
    "Paths may be absolute or relative to the workspace.", "Do not use it for anything else.",
    "Long results are paged.", "It may take some seconds.", "Ask for what is missing before you call it.",
    "It changes nothing on the machine.", "Other functions may fit better, so read them first.",
    "Run independent calls at the same time where that helps.", "Keep the text short and clear.",
    "Never invent an identifier that the user did not give.", "An error is returned as a sentence.",
    "Its limits are checked before it starts.", "Results are ordered by time, newest first.",
)  # fmt: skip
"""Sentences as they fill long descriptions and system prompts."""

SYLLABLES = "ba do fi ga ho ka lu me no pa ri so ta vu we xi yo ze bra cle dri flo gru".split()


@dataclass(frozen=True, slots=True)
class DeclaredFunction:
    """A function as declared to the model."""

    action: MadeUpAction
    name: str
    arguments: dict[str, str]
    """The argument's name of each slot."""
    schema: Schema

    def call(self, values: dict[str, Json]) -> dict[str, Json]:
        """The call with these values by slot."""
        arguments = {
            self.arguments[slot]: values[slot] for slot in self.arguments if slot in values
        }
        return {"name": self.name, "arguments": arguments}


def styled(rng: Random, name: str) -> str:
    """The name as some programmer writes it."""
    words = name.split("_")
    style = rng.random()
    if style < 0.6:
        return name
    if style < 0.75:
        return words[0] + "".join(word.capitalize() for word in words[1:])
    if style < 0.82:
        return "".join(word.capitalize() for word in words)
    if style < 0.87:
        return "-".join(words)
    if style < 0.94:
        return f"{rng.choice(('mcp', 'tools', 'app', 'api', 'home'))}__{name}"
    return "_".join("".join(rng.choices(SYLLABLES, k=2)) for _ in range(2))


def declare(rng: Random, chosen: MadeUpAction, *, advice: int = 0) -> DeclaredFunction:
    """A function that does this, with at most `advice` sentences more in its description."""
    arguments = {slot: rng.choice(names) for slot, names in chosen.arguments.items()}
    while len(set(arguments.values())) < len(arguments):
        arguments = {slot: rng.choice(names) for slot, names in chosen.arguments.items()}
    properties: Schema = {}
    for slot, name in arguments.items():
        kind = kind_of(slot)
        properties[name] = kind.schema
        if rng.random() < 0.8:
            properties[name] = kind.schema | {"description": rng.choice(kind.descriptions)}
    for name, schema in _unasked(rng, chosen, min(6, advice)):
        properties.setdefault(name, schema)
    if rng.random() < 0.3:
        properties = dict(rng.sample(sorted(properties.items()), len(properties)))
    needed = [name for slot, name in arguments.items() if _always(chosen, slot)]
    parameters: Schema = {"type": "object", "properties": properties}
    if needed:
        parameters["required"] = needed
    if rng.random() < 0.3:
        parameters["additionalProperties"] = False
    more = rng.sample(ADVICE, rng.randint(0, min(advice, len(ADVICE))))
    description = " ".join((chosen.description, *more))
    name = styled(rng, rng.choice(chosen.names))
    schema = {"name": name, "description": description, "parameters": parameters}
    return DeclaredFunction(chosen, name, arguments, {"type": "function", "function": schema})


def _unasked(rng: Random, chosen: MadeUpAction, most: int) -> list[tuple[str, Schema]]:
    """Optional arguments that no request gives a value."""
    general = rng.sample(sorted(EXTRA), rng.choice((0, 0, 0, 1, 2, most)))
    found = [(name, EXTRA[name][0] | {"description": EXTRA[name][1]}) for name in general]
    own = {*chosen.arguments, *(name for names in chosen.arguments.values() for name in names)}
    slots = rng.sample(UNASKED, rng.choice((0, 0, 1, 1, 2)))
    return [*found, *((slot, kind_of(slot).schema) for slot in slots if slot not in own)]


def _always(chosen: MadeUpAction, slot: str) -> bool:
    """Whether every request gives the slot a value."""
    return all(slot in SLOT.findall(request) for request in chosen.requests if request)


def ask(rng: Random, chosen: MadeUpAction) -> tuple[str, dict[str, Json]]:
    """What a user says who needs the function, and the value of each slot in it."""
    request = rng.choice(chosen.requests)
    values = {slot: kind_of(slot).draw(rng) for slot in SLOT.findall(request)}
    return request.format_map({slot: spoken(value) for slot, value in values.items()}), values


def ask_shell(rng: Random) -> tuple[str, dict[str, Json]]:
    """What a user says who needs a command of the shell, and the command."""
    command, requests = rng.choice(COMMANDS)
    values = {slot: kind_of(slot).draw(rng) for slot in SLOT.findall(command)}
    request = rng.choice(requests.split("|")).format_map(values)
    return request, {"command": command.format_map(values)}


def answer(rng: Random, chosen: MadeUpAction, values: dict[str, Json]) -> tuple[str, str]:
    """A result of the function, and what to say of it."""
    found = {name: kind_of(kind).draw(rng) for name, kind in chosen.result.items()}
    if not chosen.reply:
        text = rng.choice((*MESSAGES, *WORDS))
        return rng.choice((text, json.dumps({"result": text}))), f"{text[0].upper()}{text[1:]}."
    known = {name: spoken(value) for name, value in (values | found).items()}
    return json.dumps(found or {"status": "ok"}), chosen.reply.format_map(known)
