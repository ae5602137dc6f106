"""The pages' websockets: who may open one, with which ticket, and how it is closed."""
